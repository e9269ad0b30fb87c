package main

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The initiator of a test tells the responder what to do by commands on the
// connection that is measured, between the measurements. Each is answered with
// one word when it has been done, except opEcho, opAck, opReply and opSource,
// which are over when Count messages have passed.
const (
	opEcho    = 1 + iota // send back each of Count messages of Size bytes
	opSink               // receive Count messages; answer: how many were wrong. After every Index-th, if that is not 0, a token
	opAck                // answer each of Count messages with one of tokenSize bytes
	opReply              // answer each of Count tokens with a message of Size bytes
	opSource             // after a token, send Count messages of Size bytes
	opBoth               // after a token, send and receive Count messages at the same time; answer: how many were wrong
	opWindow             // register Count slots of Size bytes; answer: the offset
	opClear              // clear the window; answer: 0
	opFill               // write message i into slot i; answer: 0
	opStore              // write message Index into slot 0; answer: 0
	opCompare            // compare slot 0 with message Index; answer: 0 or 1
	opVerify             // compare every slot i with message i; answer: how many differ
	opSignal             // Count times: wait for the next signal in the window's first word, signal back to offset Index. Seed: the value before the first. Answer: 0
	opShare              // register the page that all responders share; answer: the offset
	opWord               // answer: the first word of what opShare registered
	opMirror             // Count times: wait for the next number in the window's first word, store it at mirrorAt. Seed: the number before the first. Answer: 0
	opRenew              // unregister the window and register its memory again; answer: the offset
	opPush               // answer: 0; then, after a token, write Count messages to slots of the window at Index; answer: 0
)

// tokenSize is the size of what answers or asks for a message: about that of
// the frames which do so on a link.
const tokenSize = 16

// A command is what a responder is told, 40 bytes big-endian:
//
//	op 8 | size 8 | count 8 | seed 8 | index 8
type command struct {
	Op    uint64
	Size  int64  // bytes of a message or slot, at most maxSize
	Count int64  // messages or slots
	Seed  uint64 // of the pattern; 0: contents do not matter
	Index int64
}

const (
	commandLen = 40
	maxSize    = 1 << 30 // bytes of a message, and of a window
)

// commonSize is up to how many bytes of a message every test takes. Tests make it
// smaller where the race detector looks at every byte.
var commonSize int64 = 64 << 20

func (c command) bytes() []byte {
	b := make([]byte, 0, commandLen)
	for _, v := range []uint64{c.Op, uint64(c.Size), uint64(c.Count), c.Seed, uint64(c.Index)} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// opensWindow reports whether Size and Count are those of a window.
func (c command) opensWindow() bool { return c.Op >= opWindow && c.Op != opPush && c.Op != opRenew }

// memory returns how much the responder takes for the command, in bytes, beside
// patterns.
func (c command) memory() int64 {
	switch {
	case c.Op < opWindow:
		return c.Size
	case c.Op == opWindow:
		return c.Size * c.Count
	}
	return 0
}

// readCommand reads and checks the next command. It returns io.EOF if there is
// none.
func readCommand(r io.Reader) (command, error) {
	var b [commandLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return command{}, err
	}
	word := func(i int) uint64 { return binary.BigEndian.Uint64(b[8*i:]) }
	c := command{Op: word(0), Size: int64(word(1)), Count: int64(word(2)), Seed: word(3), Index: int64(word(4))}
	switch {
	case c.Op < opEcho || c.Op > opPush:
		return c, fmt.Errorf("command %d is unknown", c.Op)
	case c.Size < 1 || c.Size > maxSize || c.Count < 0 || c.Index < 0:
		return c, fmt.Errorf("command %d has size %d, count %d, index %d", c.Op, c.Size, c.Count, c.Index)
	case c.opensWindow() && (c.Count < 1 || c.Count > maxSize/c.Size):
		return c, fmt.Errorf("a window of %d times %d bytes", c.Count, c.Size)
	}
	return c, nil
}

// ask sends a command and returns the word that answers it.
func ask(rw io.ReadWriter, c command) (uint64, error) {
	if _, err := rw.Write(c.bytes()); err != nil {
		return 0, err
	}
	return readWord(rw)
}

func readWord(r io.Reader) (uint64, error) {
	var b [8]byte
	_, err := io.ReadFull(r, b[:])
	return binary.BigEndian.Uint64(b[:]), err
}

func writeWord(w io.Writer, v uint64) error {
	_, err := w.Write(binary.BigEndian.AppendUint64(nil, v))
	return err
}
