// Package spec describes gateways: the text of a line of the configuration, and a node's
// reports about the gateways that it runs. It runs nothing.
package spec

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/access"
)

// A Kind is the kind of a gateway, the name of its command and its setting.
type Kind string

// The kinds of gateways.
const (
	Expose    Kind = "expose"     // serves a TCP or Unix address as a service of the fabric
	Forward   Kind = "forward"    // listens on a TCP or Unix address for a service
	SOCKS     Kind = "socks"      // a SOCKS5 proxy for names below .fabric
	HTTPProxy Kind = "http-proxy" // the same by the method CONNECT of HTTP
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Expose, Forward, SOCKS, HTTPProxy} }

// A Gateway is one of them with its options. [Parse] returns a checked one.
type Gateway struct {
	Kind Kind
	// Listen is where it takes connections: a service or a port of the fabric for
	// Expose, for the others "host:port" or the path of a Unix socket.
	Listen string
	// To is where they lead: the target for Expose, "host:port" or the path of a Unix socket; an
	// address of the fabric for Forward; empty for proxies, whose clients name it.
	To string

	From          []string      // Expose: the callers that may connect; none: all
	ProxyProtocol bool          // Expose: the target gets a PROXY header with the caller first
	Wait          time.Duration // not Expose: how long a new connection waits for a service that is away
	Idle          time.Duration // after so long without a byte a connection is reset; 0: never
	Max           int           // how many connections there may be; of Expose, a node gets a share (Share)
}

// Bounds of the options.
const (
	DefaultMax  = 2048
	MaxMax      = 16384 // the endpoints that an application may have
	DefaultWait = 5 * time.Second
	MaxWait     = 10 * time.Minute
	MinIdle     = time.Second
	MaxIdle     = 7 * 24 * time.Hour
	maxTextSize = 4096 // of a line, in bytes
)

// Parse returns the gateway of a line: "NAME=TARGET" for Expose, "LISTEN=NAME" for
// Forward, "LISTEN" for proxies, with options behind it:
//
//	db=localhost:5432 idle 10m max 100 proxy-protocol from web-1 label:app
//	127.0.0.1:15432=db wait 30s
//
// Callers end the line. An error names the wrong word and the reason.
func Parse(kind Kind, line string) (Gateway, error) {
	g := Gateway{Kind: kind, Max: DefaultMax}
	if len(line) > maxTextSize {
		return g, fmt.Errorf("%d bytes, want at most %d", len(line), maxTextSize)
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return g, fmt.Errorf("nothing, want %s", g.form())
	}
	if err := g.setEnds(words[0]); err != nil {
		return g, err
	}
	return g, g.setOptions(words[1:])
}

// form is how a line of g's kind begins.
func (g *Gateway) form() string {
	switch g.Kind {
	case Expose:
		return "NAME=TARGET, like db=localhost:5432"
	case Forward:
		return "LISTEN=NAME, like 127.0.0.1:15432=db"
	}
	return "an address to listen on, like 127.0.0.1:1080"
}

// setEnds sets Listen and To from the first word of a line.
func (g *Gateway) setEnds(word string) (err error) {
	if g.Kind != Expose {
		g.Wait = DefaultWait
	}
	if g.Kind == SOCKS || g.Kind == HTTPProxy {
		g.Listen, err = listenAddress(word)
		return err
	}
	left, right, ok := strings.Cut(word, "=")
	if !ok {
		return fmt.Errorf("%q: want %s", word, g.form())
	}
	if g.Kind == Expose {
		if err := checkService(left); err != nil {
			return err
		}
		g.Listen = left
		g.To, err = targetAddress(right)
		return err
	}
	if g.Listen, err = listenAddress(left); err != nil {
		return err
	}
	g.To = right
	return checkAddress(right)
}

// setOptions sets the options after the first word.
func (g *Gateway) setOptions(words []string) error {
	for len(words) > 0 {
		name := words[0]
		words = words[1:]
		var err error
		switch {
		case name == "proxy-protocol" && g.Kind == Expose:
			g.ProxyProtocol = true
			continue
		case name == "from" && g.Kind == Expose:
			return g.SetFrom(words)
		case len(words) == 0 && (name == "idle" || name == "max" || name == "wait"):
			return fmt.Errorf("%s: want a value behind it", name)
		case name == "idle":
			g.Idle, err = duration(words[0], MinIdle, MaxIdle)
		case name == "wait" && g.Kind != Expose:
			g.Wait, err = duration(words[0], 0, MaxWait)
		case name == "max":
			g.Max, err = number(words[0], MaxMax)
		default:
			return fmt.Errorf("%q: want %s", name, g.options())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		words = words[1:]
	}
	return nil
}

// options names the options that may follow the first word.
func (g *Gateway) options() string {
	if g.Kind == Expose {
		return "idle DURATION, max NUMBER, proxy-protocol or from CALLER..."
	}
	return "idle DURATION, max NUMBER or wait DURATION"
}

// Share is how many of the connections of an Expose one node may have while the others have
// so many: three quarters of the rest, so that no node takes all.
func (g *Gateway) Share(others int) int { return max(1, 3*(g.Max-others)/4) }

// SetFrom sets the callers that may connect.
func (g *Gateway) SetFrom(callers []string) error {
	if len(callers) == 0 {
		return fmt.Errorf("from: want callers behind it, like web-1 or label:app")
	}
	if _, err := access.ParseSubjects(callers); err != nil {
		return fmt.Errorf("from: %w", err)
	}
	g.From = callers
	return nil
}

// String returns the line that [Parse] makes g of.
func (g Gateway) String() string {
	line := g.Listen
	if g.To != "" {
		line += "=" + g.To
	}
	if g.Idle != 0 {
		line += " idle " + g.Idle.String()
	}
	if g.Max != DefaultMax {
		line += " max " + strconv.Itoa(g.Max)
	}
	if g.Kind != Expose && g.Wait != DefaultWait {
		line += " wait " + g.Wait.String()
	}
	if g.ProxyProtocol {
		line += " proxy-protocol"
	}
	if len(g.From) > 0 {
		line += " from " + strings.Join(g.From, " ")
	}
	return line
}

func duration(text string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf("%q: want a duration from %v to %v", text, least, most)
	}
	return d, nil
}

func number(text string, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%q: want a number from 1 to %d", text, most)
	}
	return n, nil
}

// IsPath reports whether an address of Listen or To is the path of a Unix socket.
func IsPath(address string) bool { return strings.HasPrefix(address, "/") }

// Network returns the network of an address of Listen or To, for package net.
func Network(address string) string {
	if IsPath(address) {
		return "unix"
	}
	return "tcp"
}

// listenAddress checks an address to listen on. A port alone is one of loopback.
func listenAddress(text string) (string, error) {
	if _, err := strconv.ParseUint(text, 10, 16); err == nil {
		return net.JoinHostPort("127.0.0.1", text), nil
	}
	return address(text, "listen", 0)
}

// targetAddress checks an address to dial. A port alone is one of localhost.
func targetAddress(text string) (string, error) {
	if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
		return net.JoinHostPort("localhost", text), nil
	}
	return address(text, "target", 1)
}
