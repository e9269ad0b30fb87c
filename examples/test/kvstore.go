// Package kvstore is a small application of the fabric, for the sake of its test: a
// value is kept on several nodes, so that it outlives one of them. The test kills a
// node in a cluster that fabrictest runs inside the test, without a fabricd:
//
//	go test -v ./examples/test
package kvstore

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"

	"github.com/fabricd/fabricd/fabric"
)

// A request stores Value under Key, or with Get asks for it.
type request struct {
	Get        bool
	Key, Value string
}

// Serve keeps values in memory and answers at l until l is closed.
func Serve(l net.Listener) error {
	var values sync.Map
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go answer(conn, &values)
	}
}

// answer serves the one request of a connection.
func answer(conn net.Conn, values *sync.Map) {
	defer conn.Close()
	var r request
	if err := json.NewDecoder(conn).Decode(&r); err != nil {
		return // the client is gone
	}
	if r.Get {
		value, _ := values.Load(r.Key)
		r.Value, _ = value.(string)
	} else {
		values.Store(r.Key, r.Value)
	}
	_ = json.NewEncoder(conn).Encode(r) // a client that is gone gets no answer
}

// A Client keeps every value at all of its servers.
type Client struct {
	Node    *fabric.Node
	Servers []fabric.Addr
}

// Put stores value under key. It succeeds if a server has stored it; those that are
// lost do not count.
func (c *Client) Put(ctx context.Context, key, value string) error {
	stored := false
	var errs []error
	for _, server := range c.Servers {
		_, err := c.call(ctx, server, request{Key: key, Value: value})
		stored = stored || err == nil
		errs = append(errs, err)
	}
	if stored {
		return nil
	}
	return errors.Join(errs...)
}

// Get returns the value under key, from the first server that answers.
func (c *Client) Get(ctx context.Context, key string) (string, error) {
	var errs []error
	for _, server := range c.Servers {
		answer, err := c.call(ctx, server, request{Get: true, Key: key})
		if err == nil {
			return answer.Value, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// call asks one server, until ctx is done.
func (c *Client) call(ctx context.Context, server fabric.Addr, r request) (answer request, err error) {
	conn, err := c.Node.DialAddr(ctx, server)
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return answer, err
	}
	err = json.NewDecoder(conn).Decode(&answer)
	return answer, err
}
