// Command postgres is a client of PostgreSQL whose driver dials through the fabric, so that
// its machine needs no gateway; the machine of the server exposes it. The pool of
// database/sql outlives a fabricd and the service's move to another node. In two terminals:
//
//	fabricd expose db localhost:5432 --admin ./host.admin
//	FABRIC_SOCKET=./node.sock go run ./examples/postgres dial user=postgres
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/lib/pq"

	"github.com/fabricd/fabricd/fabric"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "dial":
		err = dial(args[1])
	default:
		err = errors.New("usage: postgres dial PARAMETERS")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// dial asks the service db until the program is interrupted, once a second. A query whose
// connection is lost fails, and the pool dials anew.
func dial(parameters string) error {
	connector, err := pq.NewConnector(parameters + " host=db.fabric sslmode=disable") // the fabric encrypts
	if err != nil {
		return err
	}
	var d fabric.Dialer
	defer d.Close()
	connector.Dialer(driverDialer{&d})
	db := sql.OpenDB(connector)
	defer db.Close()
	n := 0
	for range time.Tick(time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		var version string
		err := db.QueryRowContext(ctx, "show server_version").Scan(&version)
		cancel()
		if n++; err != nil {
			fmt.Printf("query %d: %v\n", n, err)
		} else {
			fmt.Printf("query %d: PostgreSQL %s\n", n, version)
		}
	}
	return nil
}

// A driverDialer is a fabric.Dialer with the methods that the driver wants. It calls the
// one with a context.
type driverDialer struct{ *fabric.Dialer }

func (d driverDialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d driverDialer) DialTimeout(network, address string, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return d.DialContext(ctx, network, address)
}
