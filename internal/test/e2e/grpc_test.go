package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabricgrpc"
)

// interopCases are gRPC's own, except for those that need credentials of a cloud or features
// that gRPC's test server in Go does not have.
var interopCases = []struct {
	name string
	run  func(context.Context, *grpc.ClientConn, testpb.TestServiceClient)
}{
	{"empty_unary", ofService(interop.DoEmptyUnaryCall)},
	{"large_unary", ofService(interop.DoLargeUnaryCall)},
	{"client_streaming", ofService(interop.DoClientStreaming)},
	{"server_streaming", ofService(interop.DoServerStreaming)},
	{"ping_pong", ofService(interop.DoPingPong)},
	{"empty_stream", ofService(interop.DoEmptyStream)},
	{"timeout_on_sleeping_server", ofService(interop.DoTimeoutOnSleepingServer)},
	{"cancel_after_begin", ofService(interop.DoCancelAfterBegin)},
	{"cancel_after_first_response", ofService(interop.DoCancelAfterFirstResponse)},
	{"custom_metadata", ofService(interop.DoCustomMetadata)},
	{"status_code_and_message", ofService(interop.DoStatusCodeAndMessage)},
	{"special_status_message", ofService(interop.DoSpecialStatusMessage)},
	{"unimplemented_method", func(ctx context.Context, conn *grpc.ClientConn, _ testpb.TestServiceClient) {
		interop.DoUnimplementedMethod(ctx, conn)
	}},
	{"unimplemented_service", func(ctx context.Context, conn *grpc.ClientConn, _ testpb.TestServiceClient) {
		interop.DoUnimplementedService(ctx, testpb.NewUnimplementedServiceClient(conn))
	}},
}

func ofService(run func(context.Context, testpb.TestServiceClient, ...grpc.CallOption)) func(context.Context, *grpc.ClientConn, testpb.TestServiceClient) {
	return func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) { run(ctx, tc) }
}

// grpcClient runs gRPC's interop cases through the fabricd at a socket. A case that fails
// ends the process: that is why it has one.
func grpcClient(args []string) error {
	d, conn, err := grpcConn(args[0])
	if err != nil {
		return err
	}
	defer d.Close()
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, c := range interopCases {
		c.run(ctx, conn, testpb.NewTestServiceClient(conn))
		fmt.Println(c.name)
	}
	return nil
}

// grpcConn returns a client of the service interop, and its dialer.
func grpcConn(socket string) (*fabric.Dialer, *grpc.ClientConn, error) {
	d := &fabric.Dialer{Attach: attacher(socket)}
	conn, err := grpc.NewClient("fabric:///interop", fabricgrpc.Options(d)...)
	return d, conn, err
}

func attacher(socket string) func(context.Context) (*fabric.Node, error) {
	return func(ctx context.Context) (*fabric.Node, error) { return fabric.Attach(ctx, socket) }
}

// serveGRPC serves gRPC's interop service at n until the test ends.
func (l *lab) serveGRPC(n *node) {
	l.t.Helper()
	config := &fabric.ListenConfig{Attach: attacher(n.socket())}
	listener, err := config.Listen(l.t.Context(), 0, fabric.Service("interop"))
	if err != nil {
		l.t.Fatal(err)
	}
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, interop.NewTestServer())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	l.t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			l.t.Errorf("Serve: %v", err)
		}
		_ = config.Close() // its fabricd may have ended
	})
}

// TestGRPCInterop runs gRPC's own interop cases between two nodes.
func TestGRPCInterop(t *testing.T) {
	overEach(t, func(l *lab) {
		nodes := l.cluster(1)
		l.serveGRPC(nodes[1])
		client := l.application("grpc-client", "grpc-client", nodes[0].socket())
		for _, c := range interopCases {
			client.expect(l.t, time.Minute, c.name)
		}
		if code := client.exit(l.t, stepLimit); code != roleDone {
			l.t.Errorf("exit code %d", code)
		}
	})
}

// TestGRPCGoesOn kills the fabricd of a client of gRPC, and that of its server: a stream
// that is open ends with an error, and the next call of the same client is answered.
func TestGRPCGoesOn(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(2)
	l.serveGRPC(nodes[1])
	d, conn, err := grpcConn(nodes[2].socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); d.Close() })
	service := testpb.NewTestServiceClient(conn)
	for _, victim := range []*node{nodes[2], nodes[1]} {
		stream, err := service.FullDuplexCall(t.Context(), grpc.WaitForReady(true))
		if err == nil {
			err = stream.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 1}}})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatalf("before %s is killed: %v", victim.name, err)
		}
		killed := victim.kill()
		victim.launch()
		_, err = stream.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) != codes.Unavailable {
			t.Errorf("%s was killed: the stream ended with %v, want an error of Unavailable", victim.name, err)
		}
		failed := time.Since(killed)
		ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
		if _, err := service.EmptyCall(ctx, &testpb.Empty{}, grpc.WaitForReady(true)); err != nil {
			t.Errorf("%s was killed and started again: %v", victim.name, err)
		}
		cancel()
		t.Logf("%s was killed: the stream's error after %v, the next answer after %v", victim.name,
			failed.Round(time.Millisecond), time.Since(killed).Round(time.Millisecond))
		victim.joined()
		l.agree(nodes...)
	}
}
