package fabric_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// TestCopiesGoBothWays: io.Copy into a Conn and out of one moves every byte, up to a
// half-close, while the other direction goes on.
func TestCopiesGoBothWays(t *testing.T) {
	inEachAPIMode(t, func(t *testing.T, client, server *fabric.Node) {
		near, far := dial(t, client, server)
		want := make([]byte, 1<<20+17)
		rand.NewChaCha8([32]byte{5}).Read(want)
		echoed := make(chan error, 1)
		go func() {
			_, err := io.Copy(far, far)
			if err == nil {
				err = far.CloseWrite()
			}
			echoed <- err
		}()
		sent := make(chan error, 1)
		go func() {
			n, err := io.Copy(near, struct{ io.Reader }{bytes.NewReader(want)})
			if err == nil && n == int64(len(want)) {
				err = near.CloseWrite()
			}
			sent <- err
		}()
		var got bytes.Buffer
		n, err := io.Copy(&got, near)
		if err != nil || n != int64(len(want)) || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%d bytes came back, %v; want %d", n, err, len(want))
		}
		for _, c := range []chan error{sent, echoed} {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
	})
}
