package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

// completeLive completes the names of living nodes, with their IDs beside.
func (a *app) completeLive(f *askFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c := f.client(a)
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		all, err := c.Nodes(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, n := range all.Nodes {
			if n.State != "removed" {
				names = append(names, cobra.CompletionWithDesc(n.Name, fmt.Sprint("node ", n.ID)))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeServices completes the second argument with the names of services.
func (a *app) completeServices(f *askFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		c := f.client(a)
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		var all struct{ Services []struct{ Name string } }
		if text, err := c.Get(ctx, "services"); err != nil || len(args) != 1 || json.Unmarshal(text, &all) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, s := range all.Services {
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
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
