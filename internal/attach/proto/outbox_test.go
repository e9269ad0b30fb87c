package proto

import (
	"sync"
	"testing"
)

// TestManyAnswersAtOnce queues more answers than Notify's limit for an application that does not read
// yet: no answer is lost, and a notification still has room.
func TestManyAnswersAtOnce(t *testing.T) {
	near, far := Pair()
	o := NewOutbox(near)
	var wg sync.WaitGroup
	wg.Go(o.Run)
	const answers, tellings = 4096, 1024
	for i := range uint64(answers) {
		if err := o.Put(Packet{Header: Header{Op: OpAccept | OpReply, Request: i + 1}}); err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
	}
	if err := o.Notify(Packet{Header: Header{Op: OpState}}, tellings); err != nil {
		t.Errorf("a notice: %v", err)
	}
	buf := make([]byte, MaxFrame)
	for i := range uint64(answers + 1) {
		n, _, err := far.Recv(buf)
		if err != nil {
			t.Fatal(err)
		}
		if h, _, err := ParseFrame(buf[:n]); err != nil || h.Request != (i+1)%(answers+1) {
			t.Fatalf("packet %d is of request %d, %v", i, h.Request, err)
		}
	}
	near.Close()
	far.Close()
	o.Close()
	wg.Wait()
}
