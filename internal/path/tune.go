package path

import (
	"net"
	"time"
)

// Tune sets the options of a path's socket: small messages go out at once, and an idle one
// asks the peer's kernel for a sign of life once a second, which Silence looks for.
//
// The node ends a silent path (engine's watchPaths) and reports the reason to both
// ends. TCP_USER_TIMEOUT would not do: it also ends a connection whose peer answers and
// only does not read for that time. The kernel ends one by itself much later.
func Tune(s *net.TCPConn) {
	// They fail only where the socket has ended.
	_ = s.SetNoDelay(true)
	_ = s.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 30})
}
