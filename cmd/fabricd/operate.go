package main

import "github.com/spf13/cobra"

// operateCommands are those of an operator who looks after one node.
func (a *app) operateCommands() []*cobra.Command {
	return []*cobra.Command{a.backupCommand(), a.restoreCommand(), a.logLevelCommand()}
}
