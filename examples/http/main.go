// Command http is net/http over the fabric instead of TCP. The server takes a listener
// that serves a name, the client an http.Transport that dials through the fabric; the host
// of a URL is a service below .fabric. Both outlive their fabricd. In two terminals:
//
//	FABRIC_SOCKET=./host.sock go run ./examples/http serve
//	FABRIC_SOCKET=./node.sock go run ./examples/http dial http://pages.fabric/hello
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "serve":
		err = serve()
	case len(args) == 2 && args[0] == "dial":
		err = dial(args[1])
	default:
		err = errors.New("usage: http serve | http dial URL")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serve answers requests until the program is interrupted.
func serve() error {
	var config fabric.ListenConfig
	defer config.Close()
	l, err := config.Listen(context.Background(), 0, fabric.Service("pages"))
	if err != nil {
		return err
	}
	fmt.Printf("serving pages at %v\n", l.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("%s %s from %s\n", r.Method, r.URL.Path, r.RemoteAddr)
		fmt.Fprintf(w, "hello from %v", r.Context().Value(http.LocalAddrContextKey))
	})
	return http.Serve(l, mux)
}

// dial gets one page and prints it. A host that is neither a service nor has a port of a node
// would be dialed in vain until the client's timeout.
func dial(page string) error {
	u, err := url.Parse(page)
	if err != nil {
		return err
	}
	if !strings.HasSuffix(u.Hostname(), ".fabric") && u.Port() == "" {
		return fmt.Errorf("%s: %q is no service: want a name below .fabric, like http://pages.fabric/hello", page, u.Hostname())
	}
	var d fabric.Dialer
	defer d.Close()
	transport := &http.Transport{DialContext: d.DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	resp, err := client.Get(page)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s\n", resp.Status, body)
	return nil
}
