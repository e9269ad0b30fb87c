package main

import "github.com/spf13/cobra"

// operateCommands are the commands that maintain one node.
func (a *app) operateCommands() []*cobra.Command {
	return []*cobra.Command{a.backupCommand(), a.restoreCommand(), a.logLevelCommand(), a.debugCommand(), a.topCommand(), a.manCommand()}
}
