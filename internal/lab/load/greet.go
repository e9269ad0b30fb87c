package load

import (
	"encoding/binary"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// The greetings. The client sends kind, a zero, its incarnation and the nonce; the server
// answers with two zeros and its incarnation. Positions of a connection's bytes are counted
// behind them.
const (
	helloSize  = 16
	answerSize = 8
)

// Greet returns the task that greets the other end. It requires Local to be set.
// Afterwards the end is open, or is to be closed without a record.
func (e *End) Greet() Task {
	if e.ID.Side == history.Server {
		return Task{First: recvFull(helloSize, e.welcome)}
	}
	hello := make([]byte, helloSize)
	hello[0] = byte(e.Kind)
	putIncarnation(hello[2:], e.Local)
	binary.BigEndian.PutUint64(hello[8:], e.ID.Conn)
	return Task{First: send(hello, func(r Result) Step {
		if r.Status != "" {
			return done
		}
		return recvFull(answerSize, func(r Result) Step {
			if r.Status == "" {
				e.Remote = incarnationIn(r.Data[2:])
				e.open()
			}
			return done
		})
	})}
}

// welcome answers a client.
func (e *End) welcome(r Result) Step {
	if r.Status != "" {
		return done
	}
	e.Kind, e.Remote, e.ID.Conn = Kind(r.Data[0]), incarnationIn(r.Data[2:]), binary.BigEndian.Uint64(r.Data[8:])
	answer := make([]byte, answerSize)
	putIncarnation(answer[2:], e.Local)
	return send(answer, func(r Result) Step {
		if r.Status == "" && e.ID.Conn != 0 {
			e.open()
		}
		return done
	})
}

// open writes that the end is connected, if the greeting is one of our peer's.
func (e *End) open() {
	if e.Local.Generation == 0 || e.Remote.Generation == 0 || e.Remote.Node != e.Peer {
		return
	}
	e.Open = true
	e.env.Put(&history.Opened{ConnEnd: e.ID, Local: e.Local, Remote: e.Remote,
		LocalPort: uint16(e.LocalPort), RemotePort: uint16(e.RemotePort)})
}

func putIncarnation(p []byte, l addr.Incarnation) {
	binary.BigEndian.PutUint16(p, uint16(l.Node))
	binary.BigEndian.PutUint32(p[2:], uint32(l.Generation))
}

func incarnationIn(p []byte) addr.Incarnation {
	return addr.Incarnation{Node: addr.NodeID(binary.BigEndian.Uint16(p)), Generation: addr.Generation(binary.BigEndian.Uint32(p[2:]))}
}

// send sends all of p.
func send(p []byte, then func(Result) Step) Step {
	return Step{Call: Call{Do: Send, Data: p}, Then: then}
}

// recvFull receives exactly n bytes.
func recvFull(n int, then func(Result) Step) Step {
	return Step{Call: Call{Do: Recv, Len: n, Full: true}, Then: then}
}
