package appsmoke

import (
	"context"
	"database/sql"
	"net"

	"github.com/lib/pq"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabricgrpc"
)

// askSQL asks the PostgreSQL at an address, through a pool of database/sql.
func askSQL(args []string) error {
	host, port, err := net.SplitHostPort(args[0])
	if err != nil {
		return err
	}
	connector, err := pq.NewConnector("user=postgres sslmode=disable host=" + host + " port=" + port)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	return askOn(func(ctx context.Context) error {
		var one int
		return db.QueryRowContext(ctx, "select 1").Scan(&one)
	})
}

// askGRPC asks the service health, through the fabricd at a socket.
func askGRPC(args []string) error {
	d := &fabric.Dialer{Attach: attacher(args[0])}
	defer d.Close()
	conn, err := grpc.NewClient("fabric:///health", append(fabricgrpc.Options(d),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))...)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	return askOn(func(ctx context.Context) error {
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
		return err
	})
}

// serveGRPC serves the service health at the fabricd of a socket.
func serveGRPC(args []string) error {
	config := &fabric.ListenConfig{Attach: attacher(args[0])}
	defer config.Close()
	l, err := config.Listen(context.Background(), 0, fabric.Service("health"))
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	return srv.Serve(l)
}

func attacher(socket string) func(context.Context) (*fabric.Node, error) {
	return func(ctx context.Context) (*fabric.Node, error) { return fabric.Attach(ctx, socket) }
}
