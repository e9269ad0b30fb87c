// Command grpc is gRPC over the fabric. The server takes a listener that serves a name, the
// client a resolver that finds it; both outlive their fabricd, and the client follows the
// name to another node. In two terminals:
//
//	FABRIC_SOCKET=./host.sock go run ./examples/grpc serve
//	FABRIC_SOCKET=./node.sock go run ./examples/grpc dial fabric:///greeter
//
// The service is written by hand, for lack of protoc; generated code goes the same way.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabricgrpc"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "serve":
		err = serve()
	case len(args) == 2 && args[0] == "dial":
		err = dial(args[1])
	default:
		err = errors.New("usage: grpc serve | grpc dial TARGET")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serve answers calls until the program is interrupted.
func serve() error {
	var config fabric.ListenConfig
	defer config.Close()
	l, err := config.Listen(context.Background(), 0, fabric.Service("greeter"))
	if err != nil {
		return err
	}
	fmt.Printf("serving greeter at %v\n", l.Addr())
	srv := grpc.NewServer()
	srv.RegisterService(&greeter, nil)
	return srv.Serve(l)
}

// greeter is the service Greeter with its one call, Greet, from a string to a string.
var greeter = grpc.ServiceDesc{
	ServiceName: "example.Greeter",
	Methods: []grpc.MethodDesc{{MethodName: "Greet", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var name wrapperspb.StringValue
		if err := decode(&name); err != nil {
			return nil, err
		}
		return greet(ctx, &name)
	}}},
}

func greet(ctx context.Context, name *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	from, _ := peer.FromContext(ctx) // the client's address in the fabric
	fmt.Printf("Greet %s from %v\n", name.Value, from.Addr)
	return wrapperspb.String("hello, " + name.Value), nil
}

// dial calls Greet once and prints the answer.
func dial(target string) error {
	var d fabric.Dialer
	defer d.Close()
	conn, err := grpc.NewClient(target, append(fabricgrpc.Options(&d),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))...)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var answer wrapperspb.StringValue
	var from peer.Peer
	err = conn.Invoke(ctx, "/example.Greeter/Greet", wrapperspb.String("fabric"), &answer, grpc.WaitForReady(true), grpc.Peer(&from))
	if err != nil {
		return err
	}
	fmt.Printf("%s, from %v\n", answer.Value, from.Addr)
	return nil
}
