package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// meterLimit bounds one request to an admin interface.
const meterLimit = 2 * time.Second

// A linkMeter reads from a fabricd's admin interface what the link to a node
// has carried: whole packets, those sent again and the heartbeats included.
type linkMeter struct {
	http *http.Client
	peer fabric.NodeID
}

// newLinkMeter returns a meter of the link to peer; socket is fabricd's admin
// socket.
func newLinkMeter(socket string, peer fabric.NodeID) *linkMeter {
	return &linkMeter{adminClient(socket), peer}
}

// adminClient returns a client of the admin interface at socket. It connects for
// every request, so that none of its goroutines is left during a measurement.
func adminClient(socket string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: meterLimit}
}

// read returns the bytes in both directions since the link exists.
func (m *linkMeter) read(ctx context.Context) (int64, error) {
	links, err := linksOf(ctx, m.http)
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		if l.Node == m.peer && l.Sent+l.Received > 0 {
			return l.Sent + l.Received, nil
		}
	}
	return 0, fmt.Errorf("fabricd has no link to node %d that counts bytes", m.peer)
}
