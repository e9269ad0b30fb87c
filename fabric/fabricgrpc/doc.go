// Package fabricgrpc lets clients of gRPC reach services of the fabric by name:
//
//	d := &fabric.Dialer{}
//	defer d.Close()
//	conn, err := grpc.NewClient("fabric:///greeter", fabricgrpc.Options(d)...)
//
// The client follows the service to other nodes and through restarts of its own fabricd.
// With the policy round_robin its calls go to all nodes that serve the name. A server needs
// nothing of this package: grpc.Server.Serve takes the listener of [fabric.ListenConfig].
//
// [fabric.ListenConfig]: https://pkg.go.dev/github.com/fabricd/fabricd/fabric#ListenConfig
package fabricgrpc
