package core

import (
	"testing"

	"github.com/fabricd/fabricd/internal/status"
)

// TestAnOperationBeginsWhenItMay follows the marks that an operation is given
// until it may begin.
func TestAnOperationBeginsWhenItMay(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{Ops: 2})
	if _, ok := a.conn.MayBegin(); !ok {
		t.Fatal("no operation may begin on a fresh connection")
	}
	a.mustRead(make([]byte, 8), 0, nil)
	plain := Local{Buf: make([]byte, 8), Length: 8}
	behind, beside := a.conn.MayChange(plain, 0, 8), a.conn.MayChange(plain, 64, 8)
	if _, ok := beside(); !ok {
		t.Error("a write beside a read may not begin")
	}
	m, ok := behind()
	if ok || m.Seq != 1 {
		t.Errorf("a write over what a read returns: %v after %+v, want to wait for the read", ok, m)
	}
	if _, ok := a.conn.MayBegin(); !ok {
		t.Error("the second of two operations may not begin")
	}
	a.mustWrite(128, 8, nil)
	if m, ok := beside(); ok || m != a.conn.Oldest() {
		t.Errorf("the third of two operations: %v after %+v, want to wait for the oldest", ok, m)
	}
	if m, ok := behind(); ok || m.Seq != 1 {
		t.Errorf("behind a read and without room: %v after %+v, want the read", ok, m)
	}
	w := new(Waiter)
	if pending, err := a.conn.Wait(m, w); !pending || err != nil {
		t.Fatal(pending, err)
	}
	settle(a, b)
	a.wantWoken("the wait for the read", w, status.OK)
	for _, may := range []func() bool{
		func() bool { _, ok := a.conn.MayBegin(); return ok },
		func() bool { _, ok := behind(); return ok },
		func() bool { _, ok := beside(); return ok },
	} {
		if !may() {
			t.Error("nothing is under way, and an operation may not begin")
		}
	}
}
