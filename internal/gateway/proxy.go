package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/gateway/spec"
)

const (
	// suffix ends the names that proxies serve.
	suffix = ".fabric"

	proxyTimeout = 10 * time.Second // for a client to send its request
	proxyHeader  = 16 << 10         // bytes, at most, of the request of an HTTP client
)

// errAnswered is the error of a connection whose client got an answer with the refusal: it
// is closed, and not reset, which could destroy the answer.
type errAnswered struct{ error }

func (e errAnswered) Unwrap() error { return e.error }

// fabricNames returns the addresses of the fabric that a proxy's client may mean with
// "host:port", in the order in which to try them: "db.fabric" is the service db, whatever
// the port, or a port of the node db.
func fabricNames(hostPort string) ([]string, error) {
	host, port, err := net.SplitHostPort(hostPort)
	host = strings.TrimSuffix(host, ".")
	cut := max(len(host)-len(suffix), 0)
	name := host[:cut]
	if err != nil {
		return nil, fmt.Errorf("%.100q: want NAME%s:PORT", hostPort, suffix)
	}
	if !strings.EqualFold(host[cut:], suffix) {
		return nil, fmt.Errorf("%.100q: only names below %s are served", hostPort, suffix)
	}
	var names []string
	for _, n := range []string{name, net.JoinHostPort(name, port)} {
		if t, err := addr.ParseTarget(n); err == nil && t.String() == n {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%.100q: %.100q can be neither a service nor a node", hostPort, name)
	}
	return names, nil
}

// A proxy listens on an address of this machine for clients that name their targets.
type proxy struct {
	spec.Gateway
	dialer
	// ask reads a client's request. answer sends the client the result: nil is a success.
	ask func(client conn) (from conn, hostPort string, answer func(error) error, err error)
}

func (p proxy) listen(ctx context.Context) (net.Listener, error) { return listenAt(ctx, p.Listen) }

func (p proxy) dial(ctx context.Context, client conn, info *spec.Conn) (ends, error) {
	if err := client.SetDeadline(time.Now().Add(proxyTimeout)); err != nil {
		return ends{}, err
	}
	from, hostPort, answer, err := p.ask(client)
	if err != nil {
		return ends{}, err
	}
	info.To = oneLine(hostPort)
	names, err := fabricNames(hostPort)
	if err != nil {
		return ends{}, errAnswered{errors.Join(notAllowed{err}, answer(notAllowed{err}))}
	}
	server, err := p.dialer.dial(ctx, names, client, info)
	if err != nil {
		_ = client.SetDeadline(time.Now().Add(proxyTimeout)) // an error also fails the next line
		return ends{}, errAnswered{errors.Join(err, answer(err))}
	}
	if err := errors.Join(client.SetDeadline(time.Now().Add(proxyTimeout)), answer(nil), client.SetDeadline(time.Time{})); err != nil {
		abort(err, server)
		return ends{}, err
	}
	return ends{from, server}, nil
}

// notAllowed is the error of a request for a target that the proxy does not serve.
type notAllowed struct{ error }

// askSOCKS reads a client's request as SOCKS has it.
func askSOCKS(client conn) (conn, string, func(error) error, error) {
	noAuth, err := socksGreeting(client)
	if err != nil {
		return nil, "", nil, err
	}
	method := byte(socksNoAuth)
	if !noAuth {
		method = socksNoMethod
	}
	if _, err := client.Write([]byte{socksVersion, method}); err != nil {
		return nil, "", nil, err
	}
	if !noAuth {
		return nil, "", nil, errAnswered{errors.New("the client wants to authenticate, which this proxy does not")}
	}
	hostPort, err := socksRequest(client)
	if e, ok := errors.AsType[socksError](err); ok {
		_, werr := client.Write(socksAnswer(e.answer))
		return nil, "", nil, errAnswered{errors.Join(err, werr)}
	}
	return client, hostPort, func(err error) error {
		_, werr := client.Write(socksAnswer(socksCode(err)))
		return werr
	}, err
}

// socksCode returns the SOCKS answer for err.
func socksCode(err error) byte {
	if _, ok := errors.AsType[notAllowed](err); ok {
		return socksNotAllowed
	}
	switch {
	case err == nil:
		return socksOK
	case errors.Is(err, syscall.ECONNREFUSED):
		return socksRefused
	case errors.Is(err, syscall.ENODEV), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return socksUnreachable
	}
	return socksFailed
}

// askHTTP reads a client's CONNECT.
func askHTTP(client conn) (conn, string, func(error) error, error) {
	head := &io.LimitedReader{R: client, N: proxyHeader}
	r := bufio.NewReader(head)
	req, err := http.ReadRequest(r)
	switch {
	case err != nil && head.N == 0:
		err = fmt.Errorf("the request has more than %d bytes", proxyHeader)
		return nil, "", nil, errAnswered{errors.Join(err, writeHTTP(client, http.StatusRequestHeaderFieldsTooLarge, err))}
	case err != nil:
		return nil, "", nil, errAnswered{errors.Join(err, writeHTTP(client, http.StatusBadRequest, errors.New("not a request of HTTP")))}
	}
	if req.Method != http.MethodConnect {
		err := fmt.Errorf("method %.20q: this proxy serves CONNECT only", req.Method)
		return nil, "", nil, errAnswered{errors.Join(err, writeHTTP(client, http.StatusMethodNotAllowed, err))}
	}
	early, err := r.Peek(r.Buffered()) // bytes that the client has sent after its request
	if err != nil {
		return nil, "", nil, err
	}
	from := &replayed{conn: client, early: early}
	return from, req.URL.Host, func(err error) error {
		if err == nil {
			_, werr := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n")
			return werr
		}
		return writeHTTP(client, httpStatus(err), err)
	}, nil
}

// httpStatus returns the status for err.
func httpStatus(err error) int {
	if _, ok := errors.AsType[notAllowed](err); ok {
		return http.StatusForbidden
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// writeHTTP answers that a request is not served.
func writeHTTP(w io.Writer, code int, why error) error {
	text := oneLine(why.Error())
	_, err := fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s\n",
		code, http.StatusText(code), len(text)+1, text)
	return err
}

// A replayed is a connection of which the first bytes were read already.
type replayed struct {
	conn
	early []byte
}

// Read returns the early bytes first. It is for one goroutine.
func (c *replayed) Read(p []byte) (int, error) {
	if len(c.early) == 0 {
		return c.conn.Read(p)
	}
	n := copy(p, c.early)
	c.early = c.early[n:]
	return n, nil
}
