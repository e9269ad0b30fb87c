package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/wait"
)

// A Control holds the lab's instructions to a running application. It is a file, which
// reaches containers too; the application answers with a file beside it.
type Control struct {
	Seq  int  `json:"seq"`  // counts the versions of the file
	Slow int  `json:"slow"` // messages per second that each connection receives; 0: all
	Anew int  `json:"anew"` // counts the times that the application closes all and begins anew
	Rest bool `json:"rest"` // it begins nothing more: the run is about to end
	// IDs are the IDs of nodes, by index, where the two differ.
	IDs map[int]int `json:"ids,omitempty"`
}

// controlEvery is how often an application looks.
const controlEvery = 50 * time.Millisecond

// WriteControl writes c to the control file of an application.
func WriteControl(path string, c Control) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	next := path + ".next"
	if err := os.WriteFile(next, text, 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// Acknowledged returns the number of the last Control that an application has followed,
// 0 if it has followed none.
func Acknowledged(path string) int {
	text, err := os.ReadFile(ackPath(path))
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		return 0 // it is being written
	}
	return n
}

func ackPath(path string) string {
	return filepath.Join(filepath.Dir(path), "ack-"+filepath.Base(path))
}

// followControl follows the lab's instructions until ctx is done.
func (a *App) followControl(ctx context.Context) {
	if a.c.Control == "" {
		return
	}
	var last Control
	for first := true; wait.For(ctx.Done(), controlEvery); first = false {
		text, err := os.ReadFile(a.c.Control)
		var c Control
		if err != nil || json.Unmarshal(text, &c) != nil || c.Seq == last.Seq {
			continue // no instructions yet
		}
		a.slow.Store(int64(max(0, c.Slow)))
		a.setIDs(c.IDs)
		if c.Anew != last.Anew && !first { // instructions from before this application's start are done
			wait.Notify(a.anew)
		}
		if c.Rest && !last.Rest {
			close(a.resting)
			a.settle(ctx)
		}
		last = c
		a.note("instructed: %+v", c)
		if err := os.WriteFile(ackPath(a.c.Control), fmt.Append(nil, c.Seq), 0o644); err != nil {
			a.note("answer: %v", err)
		}
	}
}

// settleLimit is how long an application waits for calls under way, before it reports
// that it rests.
const settleLimit = 3 * time.Second

// settle waits until nothing is begun any more.
func (a *App) settle(ctx context.Context) {
	for deadline := time.Now().Add(settleLimit); a.busy.Load() > 0 && time.Now().Before(deadline); {
		if !wait.For(ctx.Done(), settleTime) {
			return
		}
	}
}

// active counts a goroutine that begins calls, until the function that it
// returns is called.
func (a *App) active() (done func()) {
	a.busy.Add(1)
	return func() { a.busy.Add(-1) }
}

func (a *App) setIDs(ids map[int]int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ids = ids
}

// nodeOf returns the ID of a node.
func (a *App) nodeOf(node int) fabric.NodeID {
	a.mu.Lock()
	defer a.mu.Unlock()
	if id, ok := a.ids[node]; ok {
		return fabric.NodeID(id)
	}
	return fabric.NodeID(node)
}
