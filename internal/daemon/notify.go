package daemon

import (
	"net"
	"strconv"
	"strings"
	"time"
)

// A Notifier notifies a service manager how the process is, by sd_notify(3). A nil one
// sends nothing. A manager that does not read is not waited for.
type Notifier struct {
	conn     *net.UnixConn
	watchdog time.Duration // between two signals that it wants; 0: none
	last     string
}

// NewNotifier returns the notifier of a process with these variables; nil if no
// service manager wants to be notified, or it cannot be reached.
func NewNotifier(getenv func(string) string) *Notifier {
	path := getenv("NOTIFY_SOCKET")
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "@") {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil
	}
	n := &Notifier{conn: conn}
	if us, err := strconv.ParseUint(getenv("WATCHDOG_USEC"), 10, 40); err == nil {
		n.watchdog = time.Duration(us) * time.Microsecond
	}
	return n
}

// Every returns how often [Notifier.Alive] is to be called.
func (n *Notifier) Every() time.Duration {
	const calm = 10 * time.Second
	if n == nil || n.watchdog == 0 {
		return calm
	}
	return min(calm, max(n.watchdog/3, 10*time.Millisecond))
}

// Status reports, in a sentence, how the node is.
func (n *Notifier) Status(text string) {
	if n == nil || text == n.last {
		return
	}
	n.last = text
	n.send("STATUS=" + oneLine(text))
}

// Ready reports that the node serves applications.
func (n *Notifier) Ready() { n.send("READY=1") }

// Stopping reports that the node leaves.
func (n *Notifier) Stopping() { n.send("STOPPING=1") }

// Alive reports that the process works, and how the node is.
func (n *Notifier) Alive(text string) {
	n.Status(text)
	if n != nil && n.watchdog > 0 {
		n.send("WATCHDOG=1")
	}
}

// Close closes the socket.
func (n *Notifier) Close() {
	if n != nil {
		n.conn.Close()
	}
}

func (n *Notifier) send(text string) {
	if n == nil {
		return
	}
	_ = n.conn.SetWriteDeadline(time.Now().Add(time.Second)) // it fails on a closed socket only
	_, _ = n.conn.Write([]byte(text))                        // a manager that is gone is no reason to end
}
