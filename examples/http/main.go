// Command http is net/http over the fabric instead of TCP. The server takes a
// fabric.Listener, the client an http.Transport that dials through its node; the host
// of a URL is an address of the fabric, NODE:PORT. In two terminals:
//
//	FABRIC_SOCKET=./host.sock go run ./examples/http serve
//	FABRIC_SOCKET=./node.sock go run ./examples/http dial http://0:2051/hello
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

func main() {
	node, err := fabric.Attach(context.Background(), "") // $FABRIC_SOCKET
	if err != nil {
		log.Fatal(err)
	}
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "serve":
		err = serve(node)
	case len(args) == 2 && args[0] == "dial":
		err = dial(node, args[1])
	default:
		err = errors.New("usage: http serve | http dial URL")
	}
	node.Close()
	if err != nil {
		log.Fatal(err)
	}
}

// serve answers requests until the program is interrupted.
func serve(node *fabric.Node) error {
	l, err := node.Listen(2051)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Printf("serving http://%v/hello\n", l.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("%s %s from %s\n", r.Method, r.URL.Path, r.RemoteAddr)
		fmt.Fprintf(w, "hello from node %d", node.ID())
	})
	return http.Serve(l, mux)
}

// dial gets one page and prints it.
func dial(node *fabric.Node, url string) error {
	transport := &http.Transport{DialContext: node.DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	resp, err := client.Get(url)
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
