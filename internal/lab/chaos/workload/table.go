package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
)

const (
	tableLimit = 2 * time.Second // for one question
	maxTable   = 16 << 20        // bytes of its answer
)

// table asks the daemon's admin interface for its live nodes, as `fabricd nodes --json`
// does: SCIF returns no generations.
func (a *App) table(ctx context.Context) ([]history.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, tableLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://fabricd/v1/nodes", nil)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", a.c.Admin)
	}}
	defer t.CloseIdleConnections()
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxTable))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("nodes: %s", resp.Status)
	}
	if err != nil {
		return nil, err
	}
	return liveIn(text)
}

// liveIn returns the live nodes of the daemon's table.
func liveIn(text []byte) ([]history.Member, error) {
	var t struct {
		Nodes []struct {
			ID         fabric.NodeID
			Generation fabric.Generation
			State      string
		}
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, err
	}
	var live []history.Member
	for _, n := range t.Nodes {
		if n.State != "removed" {
			live = append(live, history.Member{Incarnation: fabric.Incarnation{Node: n.ID, Generation: n.Generation}})
		}
	}
	return live, nil
}
