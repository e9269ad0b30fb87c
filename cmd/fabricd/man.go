package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manCommand writes the manual pages, for packages.
func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages, one per command, to a directory", Hidden: true,
		Args: oneArgument("a directory"), Example: "  fabricd man ./man1",
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManPages(cmd.Root(), args[0])
		},
	}
}

// writeManPages writes the page of c and of every command below it that users see.
func writeManPages(c *cobra.Command, dir string) error {
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(manPage(c, name)), 0o644); err != nil {
		return err
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" {
			if err := writeManPages(sub, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// manPage returns a command's page in the language of man(7).
func manPage(c *cobra.Command, name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH \"%s\" 1 \"\" \"fabricd\" \"fabricd\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	long := c.Long
	if long == "" {
		long = c.Short + "."
	}
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", strings.ReplaceAll(roff(long), "\n\n", "\n.PP\n"))
	flags := false
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		if !flags {
			b.WriteString(".SH OPTIONS\n")
			flags = true
		}
		kind, usage := pflag.UnquoteUsage(f)
		head := strings.TrimSpace("--" + f.Name + " " + kind)
		if f.Shorthand != "" {
			head = "-" + f.Shorthand + ", " + head
		}
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(head), roff(usage))
	})
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	var also []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" {
			also = append(also, fmt.Sprintf(".BR %s (1)", roff(name+"-"+sub.Name())))
		}
	}
	if c.HasParent() {
		also = append(also, fmt.Sprintf(".BR %s (1)", roff(strings.ReplaceAll(c.Parent().CommandPath(), " ", "-"))))
	}
	if len(also) > 0 {
		fmt.Fprintf(&b, ".SH \"SEE ALSO\"\n%s\n", strings.Join(also, ",\n"))
	}
	return b.String()
}

// roff returns text that man(7) shows as it is.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
