package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A wrong command line is answered with one line that names the error and one that
// names the help to read. cobra's own errors name neither the command nor the
// allowed values.

// misnamed returns an error if args name a command that does not exist.
func misnamed(root *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) { // asked by a shell
		return nil
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	cmd, rest, _ := root.Find(args) // its error is the one that is made below
	help := cmd.Name() == "help"
	if help {
		cmd, rest, _ = root.Find(rest)
	}
	name := firstWord(rest)
	if name == "" || !help && (cmd.Runnable() || !cmd.HasAvailableSubCommands()) {
		return nil
	}
	text := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), name)
	if cmd == root {
		text = fmt.Sprintf("unknown command %q", name)
	}
	if close := cmd.SuggestionsFor(name); len(close) > 0 {
		text += fmt.Sprintf("; did you mean %s?", strings.Join(close, " or "))
	}
	return errors.New(text)
}

// firstWord returns the first of args that is not a flag.
func firstWord(args []string) string {
	i := slices.IndexFunc(args, func(s string) bool { return !strings.HasPrefix(s, "-") })
	if i < 0 {
		return ""
	}
	return args[i]
}

// whereToRead names the help that explains the command of args.
func whereToRead(root *cobra.Command, args []string) string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd == root || cmd.Name() == "help" {
		return "`fabricd --help` lists the commands"
	}
	return fmt.Sprintf("`%s --help` explains it", cmd.CommandPath())
}

// wantedValues describes the values of flags by type, of those that not every text is.
var wantedValues = map[string]string{
	"int": "a whole number", "int64": "a whole number", "uint16": "a number from 0 to 65535",
	"uint32": "a number from 0 to 4294967295", "uint64": "a whole number from 0", "float64": "a number",
	"intSlice": "whole numbers separated by commas", "duration": "a duration, like 500ms or 2m", "bool": "true or false",
	"lifetime": "a duration from 1s to 365d, or never", "uses": "a number of nodes from 1, or unlimited",
}

// flagError describes a wrong flag.
func flagError(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := e.GetSpecifiedName()
		dashes := "--"
		if e.GetSpecifiedShortnames() != "" {
			dashes = "-"
		}
		text := fmt.Sprintf("unknown flag %s%s", dashes, name)
		if close := closeFlag(cmd, name); close != "" {
			text += fmt.Sprintf("; did you mean --%s?", close)
		}
		return errors.New(text)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s: want a value behind it", e.GetFlag().Name)
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		want := wantedValues[e.GetFlag().Value.Type()]
		if want == "" {
			return err
		}
		return fmt.Errorf("--%s: %q: want %s", e.GetFlag().Name, e.GetValue(), want)
	}
	return err
}

// onlyWith returns an error if cmd has one of the flags names without the flag other.
func onlyWith(cmd *cobra.Command, other string, names ...string) error {
	for _, name := range names {
		if cmd.Flags().Changed(name) && !cmd.Flags().Changed(other) {
			return usagef("%s: is for --%s alone", name, other)
		}
	}
	return nil
}

// closeFlag returns the flag of cmd of which name may be a misspelling.
func closeFlag(cmd *cobra.Command, name string) (close string) {
	if len(name) < 3 {
		return ""
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if close == "" && !f.Hidden && (strings.HasPrefix(f.Name, name) || mistyped(f.Name, name)) {
			close = f.Name
		}
	})
	return close
}

// mistyped reports whether one letter too many, too few, wrong or swapped with
// its neighbour makes b of a.
func mistyped(a, b string) bool {
	if len(a) < len(b) {
		a, b = b, a
	}
	if a == b || len(a) > len(b)+1 {
		return false
	}
	i := 0
	for i < len(b) && a[i] == b[i] {
		i++
	}
	if len(a) > len(b) {
		return a[i+1:] == b[i:]
	}
	return a[i+1:] == b[i+1:] || i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// noArguments is the Args of commands that take none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
}

// oneArgument is the Args of commands that take one argument; the text describes it.
func oneArgument(what string) cobra.PositionalArgs { return arguments(1, 1, what) }

// anyArguments is the most of arguments where there is no bound.
const anyArguments = math.MaxInt

// arguments is the Args of commands that take so many; the text describes them.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("want %s, got %s", what, plural(len(args), "argument"))
		}
		return nil
	}
}
