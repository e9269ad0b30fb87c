package appsmoke

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

const (
	roleEnv = "FABRICD_APPSMOKE_ROLE" // makes this binary a forwarder or a burst
	// smokeEnv makes this binary run [TestAppsSmoke] and print its table: "text", or
	// "json" for JSON lines. `make apps-smoke` sets it, and exeEnv to a fabricd.
	smokeEnv = "FABRICD_APPSMOKE"
	exeEnv   = "FABRICD_APPSMOKE_EXE"
	// providersEnv are the providers, one run each; "quic,tcp" if it is empty.
	providersEnv = "FABRICD_APPSMOKE_PROVIDERS"
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	var err error
	switch args := os.Args[1:]; role {
	case "enter", "leave":
		err = runForwarder(role, args)
	case "burst":
		err = runBurst(args)
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

// runForwarder is a forwarder until its standard input ends. Its arguments are the
// socket of its fabricd, the servers' node, and NAME,PORT,ADDRESS of each service.
// On its standard input it takes "mark" and "read", and answers with a line.
func runForwarder(role string, args []string) error {
	to, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil {
		return err
	}
	f := &forwarder{attach: func(ctx context.Context) (*fabric.Node, error) { return fabric.Attach(ctx, args[0]) }}
	for _, text := range args[2:] {
		part := strings.Split(text, ",")
		port, err := strconv.ParseUint(part[1], 10, 16)
		if err != nil {
			return err
		}
		f.services = append(f.services, &service{name: part[0], port: fabric.Port(port), tcp: part[2]})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	if role == "leave" {
		running.Go(func() { f.leave(ctx) })
	} else {
		listeners, err := listen(f.services)
		if err != nil {
			return err
		}
		running.Go(func() { f.enter(ctx, fabric.NodeID(to), listeners) })
	}
	return f.answer()
}

func listen(services []*service) (all []net.Listener, err error) {
	for _, s := range services {
		l, err := net.Listen("tcp", s.tcp)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// answer answers the commands on standard input.
func (f *forwarder) answer() error {
	out := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		all := map[string]reading{}
		for _, s := range f.services {
			if in.Text() == "mark" {
				s.mark()
			}
			all[s.name] = s.read()
		}
		if err := out.Encode(all); err != nil {
			return err
		}
	}
	return nil
}

// A burst is what came of many connections at once.
type burst struct {
	Answered int           `json:"answered"`
	Failed   int           `json:"failed"`
	Cause    string        `json:"cause,omitempty"` // of the first that failed
	Took     time.Duration `json:"took_ns"`
}

// runBurst connects to the Redis at an address so many times at once, and prints what
// came of it: a connection counts when it was answered.
func runBurst(args []string) error {
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var b burst
	results := make(chan error, count)
	began := time.Now()
	for range count {
		go func() { results <- ping(args[0]) }()
	}
	for range count {
		if err := <-results; err == nil {
			b.Answered++
		} else if b.Failed++; b.Failed == 1 {
			b.Cause = err.Error()
		}
	}
	b.Took = time.Since(began)
	return json.NewEncoder(os.Stdout).Encode(b)
}

// ping asks one Redis, on a connection of its own, whether it lives.
func ping(addr string) error {
	c, err := net.DialTimeout("tcp", addr, dialLimit)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(dialLimit)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "+PONG\r\n" {
		err = errors.New("answer " + strconv.Quote(line))
	}
	return err
}
