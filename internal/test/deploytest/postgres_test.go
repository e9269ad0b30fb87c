package deploytest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// imageLimit bounds the making of an image of PostgreSQL of Debian's packages.
const imageLimit = 6 * time.Minute

// TestPostgres takes deploy/examples/postgres up: a PostgreSQL and its client, which
// have no network, are connected through two fabricds, and stay so when one of these
// is killed and comes back.
func TestPostgres(t *testing.T) {
	t.Parallel()
	if withoutDocker(t) {
		return
	}
	image, err := output(imageLimit, nil, "deploy/examples/postgres/image.sh")
	if err != nil {
		t.Fatal(err)
	}
	p := &project{t: t, name: prefix + "-pg", images: built(t), files: []string{"deploy/examples/postgres/compose.yaml"},
		environ: []string{"POSTGRES_IMAGE=" + strings.TrimSpace(image)}}
	began := time.Now()
	p.up()
	client := p.container("client")
	waitFor(t, firstRMA, client, "visit 1, PostgreSQL ", 0)
	t.Logf("from nothing to the first row through two fabricds: %v", time.Since(began).Round(time.Millisecond))

	for _, service := range []string{"db", "client"} {
		if c := inspect[containerInfo](t, p.container(service)); c.HostConfig.NetworkMode != "none" {
			t.Errorf("%s has the network %q, want none", service, c.HostConfig.NetworkMode)
		}
	}
	out := docker(t, "exec", p.container("west"), "/fabricd", "services")
	if !strings.Contains(out, "db") || !strings.Contains(out, "east") {
		t.Errorf("west knows the services\n%s", out)
	}
	for _, service := range []string{"east", "west"} {
		docker(t, "kill", p.container(service))
		seen := visits(logs(t, client))
		docker(t, "start", p.container(service))
		eventually(t, firstRMA, func() error {
			if now := visits(logs(t, client)); now < seen+2 {
				return fmt.Errorf("%d visits behind the kill of %s, %d before", now, service, seen)
			}
			return nil
		})
	}
}

// visits returns the number of the last row that the client has written.
func visits(log string) (last int) {
	for line := range strings.Lines(log) {
		rest, found := strings.CutPrefix(line, "visit ")
		number, _, ok := strings.Cut(rest, ",")
		if n, err := strconv.Atoi(number); found && ok && err == nil {
			last = n
		}
	}
	return last
}
