package appsmoke

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"
)

const (
	roleEnv = "FABRICD_APPSMOKE_ROLE" // makes this binary a burst, a pool or a server
	// smokeEnv makes this binary run [TestAppsSmoke] and print its table: "text", or
	// "json" for JSON lines. `make apps` sets it, and exeEnv to a fabricd, which must have a
	// build of another version beside it, as FILE-next: to that it is upgraded, and back.
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
	case "burst":
		err = runBurst(args)
	case "ask-sql":
		err = askSQL(args)
	case "ask-grpc":
		err = askGRPC(args)
	case "serve-grpc":
		err = serveGRPC(args)
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

// A burst is the result of many connections at once.
type burst struct {
	Answered int           `json:"answered"`
	Failed   int           `json:"failed"`
	Cause    string        `json:"cause,omitempty"` // of the first that failed
	Took     time.Duration `json:"took_ns"`
}

// runBurst connects to the Redis at an address so many times at once, and prints the
// result: a connection counts when it was answered.
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

// dialLimit bounds a connection of a burst.
const dialLimit = 10 * time.Second

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
