package deploytest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// firstRMA bounds the time from nothing to the first RMA between containers.
const firstRMA = 60 * time.Second

// daemons and applications are the services that stay.
var (
	daemons      = []string{"host", "node1", "node2"}
	applications = []string{"keeper", "visitor"}
)

// A project is one of the compose files of deploy/, started under a name of its own.
type project struct {
	t       *testing.T
	name    string
	files   []string
	images  images
	environ []string
}

// start takes deploy/compose.yaml up; the end of the test takes it down, with its
// volumes.
func start(t *testing.T) *project {
	t.Helper()
	p := &project{t: t, name: prefix + "-c", images: built(t),
		files: []string{"deploy/compose.yaml", "internal/test/deploytest/testdata/crash.yaml"}}
	p.up()
	return p
}

// up takes the project up, with what p.environ says besides, until the test ends.
func (p *project) up() {
	t := p.t
	t.Helper()
	p.environ = append(p.environ, "COMPOSE_PROJECT_NAME="+p.name, "FABRICD_IMAGE="+p.images.fabricd, "FABRICD_APPS_IMAGE="+p.images.apps)
	t.Cleanup(func() {
		if t.Failed() {
			out, err := p.try("logs", "--tail=40")
			t.Logf("the end of the logs, %v:\n%s", err, out)
		}
		p.compose("down", "-v", "--timeout", "2")
	})
	p.compose("up", "-d", "--no-build")
}

// try runs a command of compose.
func (p *project) try(args ...string) (string, error) {
	command := composeCommand()
	for _, file := range p.files {
		command = append(command, "-f", file)
	}
	command = append(command, args...)
	return output(2*callLimit, p.environ, command[0], command[1:]...)
}

// compose runs a command of compose that must succeed.
func (p *project) compose(args ...string) string {
	p.t.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// container returns the ID of a service's container.
func (p *project) container(service string) string {
	p.t.Helper()
	id := docker(p.t, "ps", "-aq", "--no-trunc", "--filter", "label=com.docker.compose.project="+p.name,
		"--filter", "label=com.docker.compose.service="+service)
	if len(strings.Fields(id)) != 1 {
		p.t.Fatalf("service %s has containers %q, want one", service, id)
	}
	return id
}

// logs returns what a container has printed.
func logs(t *testing.T, container string) string {
	t.Helper()
	out, err := output(callLimit, nil, "sh", "-c", "docker logs "+container+" 2>&1")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// waitFor waits until a container has printed text after its first skip bytes,
// and returns how many bytes it had printed then.
func waitFor(t *testing.T, limit time.Duration, container, text string, skip int) int {
	t.Helper()
	end := 0
	eventually(t, limit, func() error {
		all := logs(t, container)
		if !strings.Contains(all[min(skip, len(all)):], text) {
			return fmt.Errorf("%q is not in the log:\n%s", text, lastLines(all, 10))
		}
		end = len(all)
		return nil
	})
	return end
}

// A containerInfo is what is looked at of a container.
type containerInfo struct {
	ID    string `json:"Id"`
	State struct {
		Status   string
		Pid      int
		ExitCode int
		Health   *struct{ Status string }
	}
	Mounts     []struct{ Destination string }
	Config     struct{ User string }
	HostConfig struct {
		ReadonlyRootfs bool
		Privileged     bool
		CapDrop        []string
		CapAdd         []string
		SecurityOpt    []string
		IpcMode        string
		PidMode        string
		UTSMode        string
		NetworkMode    string
		ShmSize        int64
		Memory         int64
		PidsLimit      int64
		Binds          []string
		Devices        []any
	}
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
}

// nodes asks a container's fabricd which nodes are there, as "ID name address".
func nodes(t *testing.T, container string) map[string]nodeInfo {
	t.Helper()
	var answer struct{ Nodes []nodeInfo }
	if err := json.Unmarshal([]byte(docker(t, "exec", container, "/fabricd", "nodes", "--json")), &answer); err != nil {
		t.Fatal(err)
	}
	byName := map[string]nodeInfo{}
	for _, n := range answer.Nodes {
		if n.State == "alive" {
			byName[n.Name] = n
		}
	}
	return byName
}

type nodeInfo struct {
	ID, Generation int
	Name, State    string
	Addresses      []string
}

// processStatus returns the lines of /proc/PID/status.
func processStatus(t *testing.T, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	status := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.TrimSpace(value)
	}
	return status
}
