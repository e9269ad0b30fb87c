package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// The carriers of a measurement between two application processes.
const (
	carryFabric   = "fabric"   // attached to a fabricd on each side
	carryNode     = "node"     // both attached to one fabricd
	carryNodeLow  = "node-low" // the same, waiting by polling: FABRIC_LATENCY=low
	carryEmbedded = "embedded" // a node in each process, over QUIC
	carryTCP      = "tcp"
	carryTLS      = "tls"
	carryStunnel  = "stunnel" // plain TCP to a stunnel on the client's side
	carryQUIC     = "quic-go"
)

// onOneNode reports whether a carrier is within one node.
func onOneNode(name string) bool { return name == carryNode || name == carryNodeLow }

// carrierOf returns the applications of a carrier. It starts them first if necessary.
func (l *lab) carrierOf(ctx context.Context, name string) (*carrier, error) {
	if c := l.carriers[name]; c != nil {
		return c, nil
	}
	c := &carrier{}
	clientSide := 0
	args := []string{endCommand, "--carrier", name, "--dir", l.dir}
	listen := net.JoinHostPort(l.addrs[1], "0")
	switch {
	case name == carryFabric:
		c.helpers = l.bothFabricds()
	case onOneNode(name):
		c.helpers, clientSide = l.bothFabricds()[1:], 1
	case name == carryStunnel:
		if _, err := tools.Find("stunnel"); err != nil {
			return nil, err
		}
		listen = "127.0.0.1:0"
	}
	var err error
	c.server, err = l.start(1, name+"-server", l.self, append(args, "--socket", l.fabricds[1].socket(), "--listen", listen)...)
	if err != nil {
		return nil, err
	}
	at, err := c.server.line()
	if err != nil {
		return nil, err
	}
	if name == carryStunnel {
		if at, c.helpers, err = l.startTunnels(ctx, name, at); err != nil {
			return nil, err
		}
	}
	c.client, err = l.start(clientSide, name+"-client", l.self, append(args, "--socket", l.fabricds[clientSide].socket(), "--bind", l.addrs[0], "--dial", at)...)
	l.carriers[name] = c
	return c, err
}

// A measured is an outcome and the processor time of all processes that took part.
type measured struct {
	outcome
	cpu time.Duration
}

// cpuEach is the processor time of a GB or of an operation.
func (m measured) cpuEach(unit string) figure {
	if unit == cpuPerGB {
		return figure(m.cpu.Seconds()*1e9) / figure(max(m.Bytes, 1))
	}
	return figure(m.cpu.Seconds()*1e6) / figure(max(m.Ops, 1))
}

// measure carries out one order over a carrier.
func (l *lab) measure(ctx context.Context, name string, next order) (m measured, err error) {
	c, err := l.carrierOf(ctx, name)
	if err != nil {
		return m, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.client.cmd.Process.Kill() })() // ends the waits for the client
	text, err := json.Marshal(next)
	if err != nil {
		return m, err
	}
	if line, err := c.client.ask(string(text)); err != nil || line != "ready" {
		return m, errors.Join(fmt.Errorf("%s says %q", c.client.name, line), err)
	}
	allocated, err := c.allocations()
	if err != nil {
		return m, err
	}
	before, err := c.spent()
	if err != nil {
		return m, err
	}
	line, err := c.client.ask("")
	if err != nil {
		return m, err
	}
	after, err := c.spent()
	if err == nil {
		err = json.Unmarshal([]byte(line), &m.outcome)
	}
	if err == nil && m.Error != "" {
		err = errors.New(m.Error)
	}
	if err != nil {
		return m, err
	}
	now, err := c.allocations()
	m.Mallocs += now - allocated
	m.cpu = after - before
	return m, err
}

// allocations asks the server for the number of allocations in its process.
func (c *carrier) allocations() (int64, error) {
	line, err := c.server.ask("")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(line, 10, 64)
}

// processes returns all processes that carry the bytes.
func (c *carrier) processes() []*process {
	return append([]*process{c.client, c.server}, c.helpers...)
}

func (c *carrier) spent() (time.Duration, error) { return spentBy(c.processes()) }

// spentBy returns the processor time of processes.
func spentBy(all []*process) (sum time.Duration, err error) {
	for _, p := range all {
		d, err := cpuTime(p.pid())
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// startTunnels starts a stunnel on each side and returns the address on the client's side that
// leads to target.
func (l *lab) startTunnels(ctx context.Context, name, target string) (near string, all []*process, err error) {
	program, err := tools.Find("stunnel")
	if err != nil {
		return "", nil, err
	}
	certificate, err := writeCertificate(l.dir)
	if err != nil {
		return "", nil, err
	}
	var ports [2]int
	for i := range ports {
		if ports[i], err = tools.FreePort(); err != nil {
			return "", nil, err
		}
	}
	near, far := fmt.Sprintf("127.0.0.1:%d", ports[0]), net.JoinHostPort(l.addrs[1], strconv.Itoa(ports[1]))
	for side, text := range []string{
		fmt.Sprintf("client = yes\n[t]\naccept = %s\nconnect = %s\n", near, far),
		fmt.Sprintf("cert = %s\n[t]\naccept = %s\nconnect = %s\n", certificate, far, target),
	} {
		file := filepath.Join(l.dir, fmt.Sprintf("%s-%d.conf", name, side))
		text = "foreground = yes\npid =\nsyslog = no\ndebug = 4\nsslVersion = TLSv1.3\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n" + text
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", nil, err
		}
		p, err := l.start(side, fmt.Sprintf("%s-tunnel-%d", name, side), program, file)
		if err != nil {
			return "", nil, err
		}
		all = append(all, p)
		if err := p.listensAt(ctx, ports[side]); err != nil {
			return "", nil, err
		}
	}
	return near, all, nil
}

// writeCertificate writes a certificate and its key, as stunnel reads them.
func writeCertificate(dir string) (string, error) {
	cert, err := selfSigned()
	if err != nil {
		return "", err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return "", err
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})...)
	file := filepath.Join(dir, "stunnel.pem")
	return file, os.WriteFile(file, text, 0o600)
}
