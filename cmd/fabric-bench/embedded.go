package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/embed"
)

// embedded makes the end a node that this process embeds, over QUIC: the server is the host of a
// cluster of two, and prints its own address and its listener's.
func (o *endOptions) embedded(ctx context.Context, e *end) error {
	host, _, err := net.SplitHostPort(o.listen)
	config := embed.Config{Bind: host, DataPort: -1, GossipPort: -1, Providers: []string{"quic"}, Paths: "off", Log: zerolog.Nop(),
		Name: "server", Host: true, StateDir: filepath.Join(o.dir, "embedded-server")}
	token := filepath.Join(o.dir, "embedded.token")
	at := ""
	if o.listen == "" {
		var found bool
		at, o.dial, found = strings.Cut(o.dial, " ")
		if !found {
			return fmt.Errorf("--dial %q: want the host's data address and NODE:PORT", at)
		}
		config.Name, config.Host, config.StateDir = "client", false, filepath.Join(o.dir, "embedded-client")
		config.Bind, config.Join, config.TokenFile = o.bind, []string{at}, token
	} else if err != nil {
		return err
	} else if err := initHost(config, token); err != nil {
		return err
	}
	node, err := embed.Start(ctx, config)
	if err != nil {
		return err
	}
	o.onNode(e, node.Node)
	e.close = node.Close
	if config.Host {
		e.at = node.DataAddr()
		return nil
	}
	return sees(ctx, node.Node, 2)
}

func initHost(config embed.Config, tokenFile string) error {
	token, err := embed.Init(config)
	return errors.Join(err, os.WriteFile(tokenFile, []byte(token), 0o600))
}
