package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// meterLimit bounds one reading of a meter.
const meterLimit = 2 * time.Second

// A linkMeter reads from a fabricd's admin interface what the link to a node
// has carried: whole packets, those sent again and the heartbeats included.
type linkMeter struct {
	http http.Client
	peer fabric.NodeID
}

// newLinkMeter returns a meter of the link to peer; socket is fabricd's admin
// socket. It connects for every reading, so that none of its goroutines is left
// during a measurement.
func newLinkMeter(socket string, peer fabric.NodeID) *linkMeter {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &linkMeter{http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: meterLimit}, peer}
}

// read returns the bytes in both directions since the link exists.
func (m *linkMeter) read(ctx context.Context) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://fabricd/v1/links", nil)
	if err != nil {
		return 0, err
	}
	resp, err := m.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var body struct {
		Links []struct {
			Node     fabric.NodeID `json:"node"`
			Sent     int64         `json:"sent_bytes"`
			Received int64         `json:"received_bytes"`
		} `json:"links"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&body); err != nil {
		return 0, err
	}
	for _, l := range body.Links {
		if l.Node == m.peer && l.Sent+l.Received > 0 {
			return l.Sent + l.Received, nil
		}
	}
	return 0, fmt.Errorf("fabricd has no link to node %d that counts bytes", m.peer)
}
