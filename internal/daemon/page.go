package daemon

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/netip"

	"github.com/fabricd/fabricd/internal/metrics"
	"github.com/fabricd/fabricd/internal/web"
)

// maxPageToken bounds the file of http-token-file, in bytes.
const maxPageToken = 1 << 10

func pageSettings() []Setting {
	return []Setting{
		text("http", "address of the page and of /metrics, which change nothing; none if empty", "an IP address and a port, like 127.0.0.1:7780, or nothing",
			func(c *Config) *string { return &c.Local.HTTP }, validPage),
		text("http-token-file", "file with the token that the page and /metrics ask for; needed where http is no address of loopback", "path of a file",
			func(c *Config) *string { return &c.Local.HTTPToken }, nil),
	}
}

func validPage(s string) bool {
	_, err := netip.ParseAddrPort(s)
	return s == "" || err == nil
}

// openPage begins to serve the page and metrics, if the setting http has an address.
func (d *Daemon) openPage(context.Context) error {
	if d.cfg.Local.HTTP == "" {
		return nil
	}
	at, err := netip.ParseAddrPort(d.cfg.Local.HTTP)
	if err != nil {
		return problem("http", d.cfg.Local.HTTP, "want an IP address and a port", err)
	}
	token, err := d.pageToken()
	if err != nil {
		return err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return listenProblem("http", at.String(), "http", at.Addr(), err)
	}
	o := d.page.observer
	reader := &admin{subject: d, log: d.log}
	read := http.NewServeMux()
	reader.readRoutes(read, snapshotAge)
	d.page.at = l.Addr().String()
	d.page.server = serveHTTP(l, "http", web.Handler(web.Options{
		Token: token, Snapshot: o.snapshot, Watched: o.measure, Read: read, Health: http.HandlerFunc(reader.health), Metrics: metrics.Handler(o.snapshot, d.log),
	}), d.log)
	d.log.Info().Str("op", "http").Str("address", d.page.at).Bool("token", token != nil).Msg("serving the page and metrics")
	return nil
}

// pageToken returns the token that the page asks for; nil: none, which only loopback may do.
func (d *Daemon) pageToken() ([]byte, error) {
	path := d.cfg.Local.HTTPToken
	if path == "" {
		return nil, nil
	}
	if err := d.noteSecret("http-token-file", path); err != nil {
		return nil, err
	}
	text, err := readBounded(path, maxPageToken)
	if err != nil {
		return nil, problem("http-token-file", path, "cannot be read: "+err.Error(), err)
	}
	token := bytes.TrimSpace(text)
	if err := web.CheckToken(token); err != nil {
		return nil, problem("http-token-file", path, err.Error(), nil)
	}
	return token, nil
}

// checkPage reports an address of the page that others can reach without a token.
func (c *Config) checkPage(report func(key, text, allowed string)) {
	at, err := netip.ParseAddrPort(c.Local.HTTP)
	if err == nil && c.Local.HTTPToken == "" && !at.Addr().Unmap().IsLoopback() {
		report("http", c.Local.HTTP, "others could read it there without a token; want an address of loopback, or http-token-file")
	}
}
