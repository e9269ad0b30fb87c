package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

func TestCommandsAreChecked(t *testing.T) {
	good := command{Op: opEcho, Size: 64, Count: 3, Seed: 7, Index: 2}
	got, err := readCommand(bytes.NewReader(good.bytes()))
	if err != nil || got != good {
		t.Errorf("got %+v, %v; want %+v", got, err, good)
	}
	for name, c := range map[string]command{
		"no op":           {Size: 1, Count: 1},
		"unknown op":      {Op: opPush + 1, Size: 1, Count: 1},
		"no size":         {Op: opEcho, Count: 1},
		"negative size":   {Op: opEcho, Size: -1, Count: 1},
		"too large":       {Op: opEcho, Size: maxSize + 1, Count: 1},
		"negative count":  {Op: opEcho, Size: 1, Count: -1},
		"negative index":  {Op: opStore, Size: 1, Count: 1, Index: -1},
		"no slots":        {Op: opWindow, Size: 1},
		"window too long": {Op: opWindow, Size: maxSize / 2, Count: 3},
		"window overflow": {Op: opWindow, Size: 1 << 20, Count: 1 << 62},
	} {
		if got, err := readCommand(bytes.NewReader(c.bytes())); err == nil {
			t.Errorf("%s: read %+v without an error", name, got)
		}
	}
	if _, err := readCommand(bytes.NewReader(nil)); !errors.Is(err, io.EOF) {
		t.Errorf("nothing: %v, want io.EOF", err)
	}
	if _, err := readCommand(bytes.NewReader(good.bytes()[:9])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a command: %v, want io.ErrUnexpectedEOF", err)
	}
}

func FuzzReadCommand(f *testing.F) {
	f.Add(command{Op: opEcho, Size: 64, Count: 3}.bytes())
	f.Add(command{Op: opWindow, Size: 1 << 20, Count: 64, Seed: 1}.bytes())
	f.Add([]byte{0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := readCommand(bytes.NewReader(b))
		if err != nil {
			return
		}
		if c.opensWindow() && (c.Size*c.Count > maxSize || c.Size*c.Count < 1) || c.Size < 1 || c.Size > maxSize || c.Count < 0 {
			t.Fatalf("accepted %+v", c)
		}
		if !bytes.Equal(c.bytes(), b[:commandLen]) {
			t.Fatalf("%x is read as %+v, which is %x", b, c, c.bytes())
		}
	})
}

func TestPatternsDiffer(t *testing.T) {
	p := newPattern(1, 64)
	if !bytes.Equal(p.message(5), newPattern(1, 64).message(5)) {
		t.Error("one seed gives two patterns")
	}
	if bytes.Equal(p.message(5), newPattern(2, 64).message(5)) || bytes.Equal(p.message(5), p.message(6)) {
		t.Error("seeds or messages give the same bytes")
	}
	mem := make([]byte, 3*64)
	if got := p.wrong(mem, 3); got != 3 {
		t.Errorf("of an empty window %d slots are wrong, want 3", got)
	}
	p.fill(mem, 3)
	if got := p.wrong(mem, 3); got != 0 {
		t.Errorf("of a full window %d slots are wrong, want 0", got)
	}
	mem[2*64+63] ^= 1
	if got := p.wrong(mem, 3); got != 1 {
		t.Errorf("with one bit changed %d slots are wrong, want 1", got)
	}
}

// A corrupter changes one bit of every n-th write of size bytes.
type corrupter struct {
	net.Conn
	size, n, seen int
}

func (c *corrupter) Write(p []byte) (int, error) {
	if len(p) == c.size {
		if c.seen++; c.seen%c.n == 0 {
			p = append([]byte(nil), p...)
			p[len(p)-1] ^= 1
		}
	}
	return c.Conn.Write(p)
}

// TestValidationFindsWrongBytes lets a network change bits, in the middle of
// tests that check bytes and of those that do not.
func TestValidationFindsWrongBytes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		kind  uint64
		check bool
		want  int64
	}{
		{"echo", opEcho, true, 2}, {"sink", opSink, true, 2}, {"unchecked echo", opEcho, false, 0}, {"unchecked sink", opSink, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := net.Pipe()
			served := make(chan error, 1)
			go func() { served <- (&responder{rw: far}).run() }()
			ch := &channel{ReadWriter: &corrupter{Conn: near, size: 100, n: 5}}
			l := newMessages(ch, job{size: 100, seed: 3, check: tt.check}, tt.kind)
			kind := &test{kind: reduction{bandwidth: tt.kind == opSink}}
			s, err := (&lineup{test: kind, side: &nodes{}, job: l.job, loads: []load{l}}).pass(t.Context(), 10)
			if err != nil || s.errors != tt.want {
				t.Errorf("%d wrong, %v; want %d", s.errors, err, tt.want)
			}
			near.Close()
			if err := <-served; err != nil {
				t.Errorf("responder: %v", err)
			}
		})
	}
}

func TestResponderRefusesWhatItCannotDo(t *testing.T) {
	for name, c := range map[string]command{
		"a window without an endpoint": {Op: opWindow, Size: 64, Count: 1},
		"to fill no window":            {Op: opFill, Size: 64, Count: 1, Seed: 1},
		"to mirror no window":          {Op: opMirror, Size: 1, Count: 1},
		"to renew no window":           {Op: opRenew, Size: 1, Count: 1},
		"to write without an endpoint": {Op: opPush, Size: 64, Count: 1, Seed: 1},
		"to verify without a seed":     {Op: opVerify, Size: 64, Count: 1},
		"an unknown command":           {Op: 99, Size: 64, Count: 1},
	} {
		near, far := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- (&responder{rw: far}).run() }()
		near.Write(c.bytes())
		if err := <-served; err == nil {
			t.Errorf("%s: no error", name)
		}
		near.Close()
	}
}
