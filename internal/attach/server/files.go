package server

import (
	"net"
	"os"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
)

// Every descriptor that an application makes the node hold is charged to its session before it is
// created, and refunded when it is closed: sessions, data sockets, memory, doorbells, epochs, and the
// descriptor in an answer until that is sent.

// answerWith returns a reply with the descriptor that open returns.
func (a *account) answerWith(body proto.Message, open func() (*os.File, error)) (reply, error) {
	if err := a.charge(heldFiles, 1); err != nil {
		return reply{}, err
	}
	f, err := open()
	if err != nil {
		a.refund(heldFiles, 1)
		return reply{}, err
	}
	return a.answerTaken(body, f), nil
}

// answerTaken is answerWith for a descriptor that is already charged.
func (a *account) answerTaken(body proto.Message, f *os.File) reply {
	return reply{body: body, file: f, after: func() { f.Close(); a.refund(heldFiles, 1) }}
}

// A socketPair is a data socket without a relay: the node's end and the application's, both charged.
type socketPair struct {
	account *account
	near    *net.UnixConn
	far     *os.File
}

// dataSocket creates the data socket of a future connection; nil if the application uses the node's
// endpoint itself.
func (s *session) dataSocket() (*socketPair, error) {
	if s.inProcess {
		return nil, nil
	}
	return newSocketPair(s.account)
}

func newSocketPair(a *account) (*socketPair, error) {
	if err := a.charge(heldFiles, 2); err != nil {
		return nil, err
	}
	near, far, err := shm.Pair()
	if err != nil {
		a.refund(heldFiles, 2)
		return nil, err
	}
	return &socketPair{a, near, far}, nil
}

func (d *socketPair) close() {
	if d == nil {
		return
	}
	d.closeNear()
	d.far.Close()
	d.account.refund(heldFiles, 1)
}

func (d *socketPair) closeNear() {
	if d == nil {
		return
	}
	d.near.Close()
	d.account.refund(heldFiles, 1)
}
