// Package stock is memberlist alone, as it comes: processes of one member each on
// the loopback interface, and how long the others take to see that one is lost.
// It is the anchor of what fabricd does with memberlist and beside it.
package stock

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"
)

// maxEvents bounds the events of a member that are not told yet.
const maxEvents = 1024

// leaveLimit bounds the wait until the others have been told.
const leaveLimit = 2 * time.Second

// Run is one member with memberlist's own settings for a LAN. It joins the member
// at join, "ip:port", unless that is empty, and tells on out, a line each: "at
// ip:port" first, then "+ name" and "- name" whenever it sees a member come or go.
// It ends with ctx, and tells the others before, as a process that gets SIGTERM
// should; who is killed does not.
func Run(ctx context.Context, name, join string, out io.Writer) error {
	events := make(chan memberlist.NodeEvent, maxEvents)
	c := memberlist.DefaultLANConfig()
	c.Name, c.BindAddr, c.BindPort, c.AdvertisePort = name, "127.0.0.1", 0, 0
	c.Events = &memberlist.ChannelEventDelegate{Ch: events}
	c.Logger = log.New(io.Discard, "", 0)
	list, err := memberlist.Create(c)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	telling, stop := context.WithCancel(ctx)
	go func() { ended <- tell(telling, events, out, list.LocalNode()) }() // ends with telling
	if join != "" {
		if _, err = list.Join([]string{join}); err != nil {
			stop()
		}
	}
	told := <-ended
	stop()
	// Who cannot be told finds out.
	_ = list.Leave(leaveLimit)
	// What is still told meanwhile fits into events, or its teller ends with the list.
	if down := list.Shutdown(); err == nil {
		err = down
	}
	if err == nil {
		err = told
	}
	return err
}

// tell writes who comes and goes until ctx is done.
func tell(ctx context.Context, events <-chan memberlist.NodeEvent, out io.Writer, self *memberlist.Node) error {
	if _, err := fmt.Fprintf(out, "at %s\n", net.JoinHostPort(self.Addr.String(), strconv.Itoa(int(self.Port)))); err != nil {
		return err
	}
	for {
		select {
		case ev := <-events:
			sign := map[memberlist.NodeEventType]string{memberlist.NodeJoin: "+", memberlist.NodeLeave: "-"}[ev.Event]
			if sign == "" {
				continue // an update
			}
			if _, err := fmt.Fprintf(out, "%s %s\n", sign, ev.Node.Name); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}
