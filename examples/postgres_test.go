package examples

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// checkPostgres has the example ask a PostgreSQL of Debian's, and kills the gateway that
// carries the pool's connection: the queries go on.
func checkPostgres(t *testing.T, c *cluster, serve, dial string) {
	if slices.Contains(strings.Split(os.Getenv("FABRICD_TEST_WITHOUT"), ","), "postgresql") {
		t.Log("not tested: FABRICD_TEST_WITHOUT says that there is no PostgreSQL here")
		return
	}
	port := startPostgres(t)
	serve = strings.Replace(serve, "localhost:5432", "127.0.0.1:"+port, 1)
	expose := c.fabricd(t, serve)
	client := c.program(t, dial)
	n, err := strconv.Atoi(client.expect(`query (\d+): PostgreSQL \d+.*`))
	if err != nil {
		t.Fatal(err)
	}
	expose.kill() // with the connection that the pool has
	c.fabricd(t, serve)
	client.expect(fmt.Sprintf(`query %d: PostgreSQL \d+.*`, n+2))
}

// startPostgres starts a PostgreSQL at a port of loopback, which ends with the test.
func startPostgres(t *testing.T) (port string) {
	t.Helper()
	dir := t.TempDir()
	var as []string
	if os.Getuid() == 0 { // as which its server refuses to run
		as = []string{"setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"}
		for _, d := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.Command("chown", "postgres", dir).CombinedOutput(); err != nil {
			t.Fatalf("chown: %v: %s; install postgresql, or say FABRICD_TEST_WITHOUT=postgresql", err, out)
		}
	}
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is a good one
	if len(all) == 0 {
		t.Fatal("this test needs a PostgreSQL of Debian; install postgresql, or say FABRICD_TEST_WITHOUT=postgresql")
	}
	bin, data := slices.MaxFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }), filepath.Join(dir, "data")
	initdb := append(slices.Clone(as), filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-N", "--no-instructions")
	if out, err := exec.CommandContext(t.Context(), initdb[0], initdb[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	port = freePort(t, "127.0.0.1")
	run := append(slices.Clone(as), filepath.Join(bin, "postgres"), "-D", data, "-p", port,
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off")
	cmd := exec.Command(run[0], run[1:]...)
	cmd.Env = append(environ(), "LC_ALL=C")
	server := start(t, cmd)
	server.expect(".*ready to accept connections")
	return port
}
