package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/faults"
)

// A breaker breaks the links of a cluster. One goroutine uses it.
type breaker interface {
	// add gives rules to all nodes.
	add(ctx context.Context, rules []faults.Rule) error
	// fired returns how often each rule of the last add has done something.
	fired(ctx context.Context) ([]uint64, error)
	// clear ends all rules.
	clear(ctx context.Context) error
}

// A memoryBreaker breaks nodes over a network in memory.
type memoryBreaker struct {
	cluster *fabrictest.Cluster
	faults  []*fabrictest.Fault // one for each rule
}

func (b *memoryBreaker) add(_ context.Context, rules []faults.Rule) error {
	b.faults = nil
	for _, r := range rules {
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		b.faults = append(b.faults, b.cluster.Faults(string(text)))
	}
	return nil
}

func (b *memoryBreaker) fired(context.Context) (all []uint64, err error) {
	for _, f := range b.faults {
		all = append(all, f.Fired())
	}
	return all, nil
}

func (b *memoryBreaker) clear(context.Context) error {
	for _, f := range b.faults {
		f.End()
	}
	return nil
}

// An adminBreaker breaks nodes by their admin sockets.
type adminBreaker struct {
	nodes []*http.Client
	ids   [][]uint64 // of the last add, by node
}

func (b *adminBreaker) add(ctx context.Context, rules []faults.Rule) error {
	text, err := json.Marshal(rules)
	if err != nil {
		return err
	}
	b.ids = nil
	for _, node := range b.nodes {
		var added struct {
			IDs []uint64 `json:"ids"`
		}
		if err := askAdmin(ctx, node, http.MethodPost, "faults", text, &added); err != nil {
			return errors.Join(err, b.clear(ctx))
		}
		b.ids = append(b.ids, added.IDs)
	}
	return nil
}

func (b *adminBreaker) fired(ctx context.Context) (all []uint64, err error) {
	all = make([]uint64, len(b.ids[0]))
	for i, node := range b.nodes {
		var known struct {
			Faults []faults.Status `json:"faults"`
		}
		if err := askAdmin(ctx, node, http.MethodGet, "faults?ended=true", nil, &known); err != nil {
			return nil, err
		}
		for _, st := range known.Faults {
			if rule := slices.Index(b.ids[i], st.Rule.ID); rule >= 0 {
				all[rule] += st.Counts.Fired()
			}
		}
	}
	return all, nil
}

func (b *adminBreaker) clear(ctx context.Context) (err error) {
	for _, node := range b.nodes {
		err = errors.Join(err, askAdmin(ctx, node, http.MethodDelete, "faults", nil, nil))
	}
	return err
}

// adminMost bounds an answer of an admin interface, in bytes.
const adminMost = 64 << 20

// askAdmin asks fabricd's admin interface; answer is nil if nobody wants to know.
func askAdmin(ctx context.Context, node *http.Client, method, path string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://fabricd/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := node.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, adminMost))
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("fabricd refuses %s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(text))
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}
