package appsmoke

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The servers listen on the loopback address of their namespace and the clients' fabricd
// on that of theirs, on the same ports.
const (
	postgresAt = "127.0.0.1:5432"
	redisAt    = "127.0.0.1:6379"
	nginxAt    = "127.0.0.1:8080"
	sshAt      = "127.0.0.1:22"
	gitAt      = "127.0.0.1:9418"
	poolAt     = "127.0.0.1:5433" // of the clients alone: PostgreSQL by another name, so that it is counted apart
)

// The settings of the two fabricds.
const (
	exposes  = "postgres=" + postgresAt + " max 4096,redis=" + redisAt + " max 4096,nginx=" + nginxAt + " max 4096,ssh=" + sshAt + ",git=" + gitAt + ",pool=" + postgresAt
	forwards = postgresAt + "=postgres max 4096," + redisAt + "=redis max 4096," + nginxAt + "=nginx max 4096," + sshAt + "=ssh," + gitAt + "=git," + poolAt + "=pool"
)

// The download, which nginx sends at a rate.
const (
	fileBytes = 40 << 20
	fileRate  = "20m"
	fileTime  = 2 * time.Second
)

// A server is one of the servers, which run from the first to the last check.
type server struct {
	name string
	proc *process
	stop syscall.Signal
}

// startServers starts the servers, and waits for each until its client gets through.
func (l *lab) startServers() (all []server, err error) {
	for _, s := range []struct {
		name  string
		stop  syscall.Signal
		start func(dir string) (*process, error)
		check func(context.Context, *side) error
	}{
		{"postgres", syscall.SIGINT, l.startPostgres, checkPostgres},
		{"redis", syscall.SIGTERM, l.startRedis, checkRedis},
		{"nginx", syscall.SIGTERM, l.startNginx, checkNginx},
		{"ssh", syscall.SIGTERM, l.startSSH, l.checkSSH},
		{"git", syscall.SIGTERM, l.startGit, checkGit},
	} {
		dir := filepath.Join(l.dir, s.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return all, err
		}
		p, err := s.start(dir)
		if err != nil {
			return all, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, server{s.name, p, s.stop})
		err = await(stepLimit, func() error { return s.check(l.t.Context(), l.servers) })
		if err != nil {
			return all, fmt.Errorf("%s does not serve: %w", s.name, err)
		}
	}
	return all, quietly(l.servers.inside(l.t.Context(), pgBin("pgbench"), "-i", "-q", "-s", "1", "-h", "127.0.0.1", "-U", "postgres", "postgres"))
}

// quietly runs cmd and returns its output in the error if it failed.
func quietly(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// asPostgres begins commands of PostgreSQL's server, which refuses to run as root.
var asPostgres = []string{"setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL"}

// pgBin is where Debian has a program of PostgreSQL; those in PATH are wrappers.
func pgBin(name string) string {
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // the pattern is a good one
	if len(all) == 0 {
		return name
	}
	return all[len(all)-1]
}

func (l *lab) startPostgres(dir string) (*process, error) {
	data := filepath.Join(dir, "data")
	if err := quiet("chown", "postgres", dir); err != nil {
		return nil, err
	}
	initdb := append(asPostgres[:len(asPostgres):len(asPostgres)], pgBin("initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-N")
	if err := quiet(initdb...); err != nil {
		return nil, err
	}
	run := append(asPostgres[:len(asPostgres):len(asPostgres)], pgBin("postgres"), "-D", data,
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off")
	return start(l.servers.inside(context.Background(), run...), filepath.Join(l.dir, "postgres.log"))
}

func (l *lab) startRedis(dir string) (*process, error) {
	return start(l.servers.inside(context.Background(), "redis-server", "--bind", "127.0.0.1", "--save", "",
		"--tcp-backlog", "4096", "--dir", dir), filepath.Join(l.dir, "redis.log"))
}

const nginxConfig = `daemon off; master_process off; pid pid; error_log stderr; worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
  server {
    listen ` + nginxAt + ` backlog=4096; root %s;
    location = /file { limit_rate ` + fileRate + `; }
  }
}
`

func (l *lab) startNginx(dir string) (*process, error) {
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "conf"), fmt.Appendf(nil, nginxConfig, dir), 0o600),
		os.WriteFile(filepath.Join(dir, "small"), []byte("served\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "file"), fileContents(), 0o600))
	if err == nil {
		l.largeSum, err = writeWords(filepath.Join(dir, "large"), largeBytes)
	}
	if err != nil {
		return nil, err
	}
	return start(l.servers.inside(context.Background(), "nginx", "-p", dir, "-e", "stderr", "-c", "conf"), filepath.Join(l.dir, "nginx.log"))
}

// fileContents are bytes that differ at each offset's 8-byte word.
func fileContents() []byte {
	p := make([]byte, 0, fileBytes)
	for i := uint64(0); len(p) < fileBytes; i++ {
		v := i * 0x9e3779b97f4a7c15
		p = append(p, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56))
	}
	return p
}

// The checks ask a server once, from s, with its own client.

func checkPostgres(ctx context.Context, s *side) error {
	return checkWith(ctx, s, "1\n", pgBin("psql"), "-h", "127.0.0.1", "-U", "postgres", "-At", "-c", "select 1", "postgres")
}

func checkRedis(ctx context.Context, s *side) error {
	return checkWith(ctx, s, "PONG\n", "redis-cli", "-h", "127.0.0.1", "ping")
}

func checkNginx(ctx context.Context, s *side) error {
	return checkWith(ctx, s, "served\n", "curl", "-sS", "http://"+nginxAt+"/small")
}

func checkWith(ctx context.Context, s *side, want string, argv ...string) error {
	limited, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	out, err := s.inside(limited, argv...).CombinedOutput()
	if err == nil && string(out) != want {
		err = errors.New("the answer is wrong")
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", argv[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
