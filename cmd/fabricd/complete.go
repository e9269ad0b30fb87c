package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

// completeTimeout bounds the wait of a shell at the tab key.
const completeTimeout = time.Second

// complete completes the argument behind so many others with what get asks fabricd for; an error
// completes nothing.
func (a *app) complete(f *askFlags, behind int, get func(context.Context, *daemon.Client) ([]cobra.Completion, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) != behind {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c := f.client(a)
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		names, _ := get(ctx, c)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// liveNodes returns the names of living nodes, with their IDs beside.
func liveNodes(ctx context.Context, c *daemon.Client) (names []cobra.Completion, err error) {
	all, err := c.Nodes(ctx)
	for _, n := range all.Nodes {
		if n.State != "removed" {
			names = append(names, cobra.CompletionWithDesc(n.Name, fmt.Sprint("node ", n.ID)))
		}
	}
	return names, err
}

// knownNodes returns the names of all identities, of a node that is not the host those of its list.
func knownNodes(ctx context.Context, c *daemon.Client) (names []cobra.Completion, err error) {
	if all, err := c.Enrolled(ctx); err == nil {
		for _, n := range all.Nodes {
			names = append(names, n.Name)
		}
		return names, nil
	}
	all, err := c.Nodes(ctx)
	for _, n := range all.Nodes {
		names = append(names, n.Name)
	}
	return names, err
}

// services returns the names of services.
func services(ctx context.Context, c *daemon.Client) (names []cobra.Completion, err error) {
	text, err := c.Get(ctx, "services")
	if err != nil {
		return nil, err
	}
	var all struct{ Services []struct{ Name string } }
	err = json.Unmarshal(text, &all)
	for _, s := range all.Services {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// tokenIDs returns the IDs of join tokens.
func tokenIDs(ctx context.Context, c *daemon.Client) (ids []cobra.Completion, err error) {
	all, err := c.Tokens(ctx)
	for _, t := range all.Tokens {
		ids = append(ids, t.ID)
	}
	return ids, err
}

// completeWords completes the values of a flag that has few of them.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("BUG: fabricd: completion of " + flag + ": " + err.Error())
	}
}

// completeSettings completes the values of settings with few allowed ones, and the names
// of files and directories for settings that are a path.
func completeSettings(cmd *cobra.Command) {
	for _, s := range daemon.Settings() {
		var fn cobra.CompletionFunc
		switch words := s.Words(); {
		case len(words) > 0:
			fn = cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		case strings.HasPrefix(s.Allowed, "path of a directory"):
			fn = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
		case strings.HasPrefix(s.Allowed, "path of"):
			continue // the shell's own completion
		default:
			fn = cobra.NoFileCompletions
		}
		if err := cmd.RegisterFlagCompletionFunc(s.Key, fn); err != nil {
			panic("BUG: fabricd: completion of " + s.Key + ": " + err.Error())
		}
	}
}

// bashAlone stands in for the two functions of the package bash-completion that the script
// for bash calls, where that is not loaded.
const bashAlone = `declare -F _get_comp_words_by_ref >/dev/null || _get_comp_words_by_ref() {
    local line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cword=$((${#words[@]} - 1))
    cur=${words[cword]} prev=${words[cword - 1]}
}
declare -F _filedir >/dev/null || _filedir() {
    [[ $1 == -d ]] || set -- -f
    mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
    compopt -o filenames
}
`

// completeAlone lets the script for bash work without another package.
func (a *app) completeAlone(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	bash, _, _ := root.Find([]string{"completion", "bash"}) // it is there
	bash.Long = strings.Replace(bash.Long, `This script depends on the 'bash-completion' package.
If it is not installed already, you can install it via your OS's package manager.
`, `It works with the package bash-completion and without, in bash 4 and later.
`, 1)
	rest := bash.RunE
	bash.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := io.WriteString(a.stdout, bashAlone); err != nil {
			return err
		}
		return rest(cmd, args)
	}
}
