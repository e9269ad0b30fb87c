package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

func (a *app) initCommand() *cobra.Command {
	var dir, name, file string
	var tls daemon.TLSConfig
	var ensure bool
	var limits tokenFlags
	cmd := &cobra.Command{
		Use: "init", Short: "Make a new cluster: the state directory of its host, and a join token", Args: noArguments,
		Long: `init makes the state directory of a cluster's host: its identity, the cluster's
certificate authority and an empty list of nodes. It prints a token, which is a
secret, or writes it to a file. The token lives a day and for 100 nodes unless asked for
otherwise; "fabricd token create" makes further ones.
A directory that holds a node already is left as it is, and is an error unless
--if-missing is given: then init makes only what is missing, the cluster or the
token file, and can be repeated, also while the host runs.`,
		Example: `  fabricd init --state-dir /var/lib/fabricd --token-file join.token
  fabricd init --state-dir ./host --name rack-1 --token-file join.token
  fabricd init --state-dir ./host --token-ttl 1h --token-uses 3 --token-file join.token
  fabricd init --if-missing --state-dir /var/lib/fabricd --token-file /run/join/token`,
	}
	def := daemon.Default()
	cmd.Flags().StringVar(&dir, "state-dir", "", "directory to make (default $FABRIC_STATE_DIR or "+def.StateDir+")")
	cmd.Flags().StringVar(&name, "name", def.Name, "name of the host in tables and logs")
	cmd.Flags().StringVar(&file, "token-file", "", "write the token to this new file, mode 0600, instead of printing it")
	cmd.Flags().StringVar(&tls.CA, "ca", "", "certificates of an operator's own CA; no authority is made then, and the gossip keys take the token's place")
	cmd.Flags().StringVar(&tls.Cert, "cert", "", "the host's certificate from that CA")
	cmd.Flags().StringVar(&tls.Key, "key", "", "the private key of that certificate")
	cmd.Flags().BoolVar(&ensure, "if-missing", false, "make only what is missing of the cluster and the token file")
	limits.addTo(cmd, "token-")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("state-dir") && dir == "" {
			return usagef(`state-dir: "": want a directory`)
		}
		if ensure && file == "" {
			return usagef("if-missing: want --token-file too: the file shows whether there is a token")
		}
		flags := map[string]string{"role": string(daemon.RoleHost), "name": name}
		for key, text := range map[string]string{"state-dir": dir, "ca": tls.CA, "cert": tls.Cert, "key": tls.Key} {
			if text != "" {
				flags[key] = text
			}
		}
		c, err := daemon.Load("", a.environ, flags)
		if err != nil {
			return err
		}
		c.JoinToken = limits.limits()
		if ensure {
			return daemon.Ensure(c, file)
		}
		token, err := daemon.Init(c, file)
		if err != nil || file != "" {
			return err
		}
		_, err = fmt.Fprintln(a.stdout, token)
		return err
	}
	return cmd
}
