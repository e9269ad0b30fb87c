package path

import (
	"net"
	"time"
)

// Tune sets what a path's socket needs: small messages go out at once, and an idle one
// asks the peer's kernel for a sign of life once a second, which Silence looks for.
//
// What ends a silent path is its node (engine's watchPaths), which can say why to both
// ends. TCP_USER_TIMEOUT would not do: it also ends a connection whose peer answers and
// only does not read for that time. The kernel ends one by itself much later.
func Tune(s *net.TCPConn) {
	// They fail only where the socket has ended.
	_ = s.SetNoDelay(true)
	_ = s.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 30})
}
