package transport

import (
	"context"
	"fmt"
	"sync"

	"github.com/fabricd/fabricd/internal/wait"
)

// incomingDatagrams bounds the datagrams that wait for ReceiveDatagram; further ones are dropped.
const incomingDatagrams = 128

// Incoming has the streams and datagrams of a session's peer that no caller has taken yet, for
// providers that have no such queues: their sessions embed it.
type Incoming struct {
	session   Session
	datagrams chan []byte
	arrival   chan struct{} // holds a token when AcceptStream should check streams

	mu      sync.Mutex // guards streams
	streams []RecvStream
}

// Init prepares in, which session embeds.
func (in *Incoming) Init(session Session) {
	in.session, in.datagrams, in.arrival = session, make(chan []byte, incomingDatagrams), make(chan struct{}, 1)
}

// PutStream queues a stream that the peer has begun.
func (in *Incoming) PutStream(s RecvStream) {
	in.mu.Lock()
	in.streams = append(in.streams, s)
	in.mu.Unlock()
	wait.Notify(in.arrival)
}

// PutDatagram queues a copy of p if there is room.
func (in *Incoming) PutDatagram(p []byte) {
	select {
	case in.datagrams <- append([]byte{}, p...):
	default:
	}
}

// AcceptStream implements Session. Streams are accepted in the order of PutStream.
func (in *Incoming) AcceptStream(ctx context.Context) (RecvStream, error) {
	for {
		if s := in.next(); s != nil {
			return s, nil
		}
		if _, err := Await(ctx, in.session, in.arrival, "accept stream"); err != nil {
			return nil, err
		}
	}
}

// next takes the first stream, nil if there is none. After the session's end it drops all.
func (in *Incoming) next() (s RecvStream) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.session.Err() != nil {
		in.streams = nil
	}
	if len(in.streams) > 0 {
		s, in.streams = in.streams[0], in.streams[1:]
	}
	if len(in.streams) > 0 {
		wait.Notify(in.arrival) // another caller may wait
	}
	return s
}

// ReceiveDatagram implements Session.
func (in *Incoming) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	return Await(ctx, in.session, in.datagrams, "receive datagram")
}

// Await receives from ch, until session or ctx ends. what names the call for the error of ctx.
func Await[T any](ctx context.Context, session Session, ch <-chan T, what string) (v T, err error) {
	if err := session.Err(); err != nil {
		return v, err
	}
	select {
	case v = <-ch:
		return v, nil
	case <-session.Done():
		return v, session.Err()
	case <-ctx.Done():
		return v, fmt.Errorf("%s: %w", what, ctx.Err())
	}
}
