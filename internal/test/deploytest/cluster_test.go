package deploytest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestCompose takes the cluster of deploy/compose.yaml up and does to it, in
// this order, what users do and what happens to them.
func TestCompose(t *testing.T) {
	t.Parallel()
	if withoutDocker(t) {
		return
	}
	built(t)
	began := time.Now()
	p := start(t)
	visitor := p.container("visitor")
	waitFor(t, firstRMA, visitor, "round 0: ", 0)
	took := time.Since(began)
	t.Logf("from nothing to the first RMA between containers: %v", took.Round(time.Millisecond))
	if took > firstRMA {
		t.Errorf("it took %v, want %v at most", took, firstRMA)
	}
	for _, step := range []struct {
		name string
		run  func(*testing.T, *project)
	}{
		{"healthy", healthy},
		{"make cluster waits for it", awaited},
		{"connected", connected},
		{"on a path without a network", onPath},
		{"hardened", hardened},
		{"up again changes nothing", upAgain},
		{"the page for compose", composePage},
		{"the page for Kubernetes", kubernetesPage},
		{"two containers of one node share memory", sharedMemory},
		{"memory limit", memoryLimit},
		{"small UDP buffers are logged", buffersLogged},
		{"two networks", twoNetworks},
		{"killed applications leave nothing", killedApplications},
		{"killed node", killedNode},
		{"stopped node", stoppedNode},
		{"host restarted", hostRestarted},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			here := *p
			here.t = t
			step.run(t, &here)
		})
		if !ok {
			return
		}
	}
}

// TestEveryComposeReadsTheFile lets each compose of this machine read and check it:
// the other tests use one of them.
func TestEveryComposeReadsTheFile(t *testing.T) {
	t.Parallel()
	if withoutDocker(t) {
		return
	}
	for _, command := range composeCommands() {
		for _, file := range []string{"deploy/compose.yaml", "deploy/examples/postgres/compose.yaml"} {
			args := append(slices.Clone(command[1:]), "-f", file, "config", "-q")
			if _, err := output(callLimit, nil, command[0], args...); err != nil {
				t.Error(err)
			}
		}
	}
}

func healthy(t *testing.T, p *project) {
	for _, service := range daemons {
		id := p.container(service)
		eventually(t, waitLimit, func() error {
			c := inspect[containerInfo](t, id)
			if c.State.Health == nil || c.State.Health.Status != "healthy" {
				return fmt.Errorf("%s is %+v", service, c.State)
			}
			return nil
		})
	}
	if c := inspect[containerInfo](t, p.container("init")); c.State.Status != "exited" || c.State.ExitCode != 0 {
		t.Errorf("init is %+v, want ended without an error", c.State)
	}
}

// awaited runs the script behind `make cluster` on the cluster, which is up, and on
// one that never comes and that it has waited a minute for.
func awaited(t *testing.T, p *project) {
	await := func(began time.Time, environ ...string) (string, error) {
		args := append([]string{strconv.FormatInt(began.Unix(), 10)}, composeCommand()...)
		args = append(args, "-f", "deploy/compose.yaml")
		return output(2*callLimit, append(slices.Clone(p.environ), environ...), "deploy/await.sh", args...)
	}
	out, err := await(time.Now())
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{"node1", "node2", "connected: ", "round 0: ", "TLS 1.3 between the applications", "cluster: 3 nodes and 2 applications in containers without a network, healthy, past their first RMA and on a path after "} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	out, err = await(time.Now().Add(-time.Minute), "COMPOSE_PROJECT_NAME="+p.name+"-none")
	if err == nil || !strings.Contains(err.Error(), "cluster: host is not healthy after a minute") || out != "" {
		t.Errorf("of a cluster that is not there it says %q, %v", out, err)
	}
	if !strings.Contains(readFile(t, "Makefile"), "deploy/await.sh \"$$began\" $(CLUSTER)\n") {
		t.Error("make cluster does not call it so")
	}
}

// connected looks at the cluster from every node, and at the two applications.
func connected(t *testing.T, p *project) {
	for _, service := range daemons {
		all := nodes(t, p.container(service))
		if len(all) != 3 || all["host"].ID != 0 {
			t.Errorf("%s sees %v, want host, node1 and node2", service, all)
		}
	}
	keeper, visitor := logs(t, p.container("keeper")), logs(t, p.container("visitor"))
	if !strings.Contains(keeper, "visitor ") || !strings.Contains(keeper, ": connected") {
		t.Errorf("the keeper says\n%s", keeper)
	}
	for _, want := range []string{"attached to node ", "connected: ", "65536 bytes written and fenced in "} {
		if !strings.Contains(visitor, want) {
			t.Errorf("the visitor does not say %q:\n%s", want, visitor)
		}
	}
	if strings.Contains(visitor, "mapped:") {
		t.Error("the visitor is on the keeper's node: nothing crossed containers")
	}
}

// onPath asks the visitor's node for the way of its connection, which is to be a path
// with TLS that carries what the two say to each other, though neither has a network.
func onPath(t *testing.T, p *project) {
	for _, service := range applications {
		if c := inspect[containerInfo](t, p.container(service)); c.HostConfig.NetworkMode != "none" {
			t.Errorf("%s has the network %q, want none", service, c.HostConfig.NetworkMode)
		}
	}
	node := p.container("node2")
	began := time.Now()
	sent := uint64(0)
	for range 2 { // bytes, and more of them later on
		eventually(t, waitLimit, func() error {
			var answer struct {
				Ways []struct {
					Messages struct{ Path, Why string }
					Socket   *struct {
						Local, Remote string
						TLS           bool
						Since         time.Time
						SentBytes     uint64 `json:"sent_bytes"`
						ReceivedBytes uint64 `json:"received_bytes"`
					}
				}
			}
			text := docker(t, "exec", node, "/fabricd", "why", "--json")
			if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Ways) != 1 {
				return fmt.Errorf("fabricd why: %v, want one connection:\n%s", err, text)
			}
			way := answer.Ways[0]
			s := way.Socket
			if way.Messages.Path != "path" || s == nil || !s.TLS || s.Local == "" || s.Remote == "" || s.ReceivedBytes == 0 || s.SentBytes <= sent {
				return fmt.Errorf("want a path with TLS that has carried more than %d bytes:\n%s", sent, text)
			}
			if s.Since.IsZero() || s.Since.After(began.Add(waitLimit)) {
				t.Errorf("the path was made at %v", s.Since)
			}
			sent = s.SentBytes
			return nil
		})
	}
}

// hardened holds every container to what the pages promise.
func hardened(t *testing.T, p *project) {
	for _, service := range append(slices.Clone(daemons), applications...) {
		c := inspect[containerInfo](t, p.container(service))
		h := c.HostConfig
		user, _, _ := strings.Cut(c.Config.User, ":")
		shared := h.IpcMode == "host" || h.PidMode == "host" || h.UTSMode == "host" || h.NetworkMode == "host"
		switch {
		case user == "" || user == "0":
			t.Errorf("%s runs as %q", service, c.Config.User)
		case !h.ReadonlyRootfs, h.Privileged, shared, len(h.Devices) > 0:
			t.Errorf("%s: %+v: want a read-only root, no privilege and no namespace of the machine", service, h)
		case !slices.Equal(h.CapDrop, []string{"ALL"}) || len(h.CapAdd) > 0:
			t.Errorf("%s: capabilities -%v +%v, want -ALL", service, h.CapDrop, h.CapAdd)
		case !slices.ContainsFunc(h.SecurityOpt, func(o string) bool {
			return strings.HasPrefix(o, "no-new-privileges") && !strings.HasSuffix(o, "false")
		}):
			t.Errorf("%s: security options %v, want no-new-privileges", service, h.SecurityOpt)
		case h.ShmSize != 0 && h.ShmSize != 64<<20:
			t.Errorf("%s: /dev/shm of %d bytes, want what Docker gives", service, h.ShmSize)
		case h.Memory <= 0 || h.PidsLimit <= 0:
			t.Errorf("%s: memory %d, processes %d, want limits", service, h.Memory, h.PidsLimit)
		}
		status := processStatus(t, c.State.Pid)
		for key, want := range map[string]string{
			"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapBnd": "0000000000000000",
			"NoNewPrivs": "1", "Seccomp": "2",
		} {
			if status[key] != want {
				t.Errorf("%s: %s is %q in /proc, want %s", service, key, status[key], want)
			}
		}
		if uid := strings.Fields(status["Uid"])[0]; uid != user {
			t.Errorf("%s: runs as user %s, want %s", service, uid, user)
		}
		nothingInMemoryFolders(t, service, c.State.Pid)
	}
}

// nothingInMemoryFolders looks into a container's /dev/shm and /tmp. Only root
// can.
func nothingInMemoryFolders(t *testing.T, what string, pid int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Logf("%s: not looked into its folders: this needs root", what)
		return
	}
	for _, dir := range []string{"dev/shm", "tmp", "var/tmp"} {
		files, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "root", dir))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, f := range files {
			t.Errorf("%s: /%s holds %s, want nothing: memory has no name", what, dir, f.Name())
		}
	}
}

func upAgain(t *testing.T, p *project) {
	before := map[string]containerInfo{}
	for _, s := range append(slices.Clone(daemons), applications...) {
		before[s] = inspect[containerInfo](t, p.container(s))
	}
	p.compose("up", "-d", "--no-build")
	for s, b := range before {
		if a := inspect[containerInfo](t, p.container(s)); a.ID != b.ID || a.State.Pid != b.State.Pid {
			t.Errorf("%s was made or started anew by a second up", s)
		}
	}
	eventually(t, waitLimit, func() error {
		c := inspect[containerInfo](t, p.container("init"))
		if c.State.Status != "exited" || c.State.ExitCode != 0 {
			return fmt.Errorf("the second init is %+v", c.State)
		}
		return nil
	})
}

// onNode returns the options of a container with one more application at a
// node: the volume with its socket, and nothing else.
func (p *project) onNode(node string) []string {
	return []string{"-v", p.name + "_" + node + "-socket:/run/fabricd"}
}

// application runs an application at a node with Docker's default flags, and
// returns what it prints.
func (p *project) application(node string, options []string, args ...string) (string, error) {
	command := append([]string{"run", "--rm", "--name", p.name + "-app", "--network", "none"}, options...)
	command = append(command, p.onNode(node)...)
	command = append(append(command, p.images.apps), args...)
	out, err := output(callLimit, nil, "docker", command...)
	if err != nil {
		return err.Error(), err
	}
	return out, nil
}

// sharedMemory attaches a second container to the keeper's node. It maps the
// keeper's memory: no IPC namespace, no ptrace, no size of /dev/shm, not even a
// network.
func sharedMemory(t *testing.T, p *project) {
	out, err := p.application("node1", nil, "/visitor", "-rounds", "3", "-every", "0s", "-size", strconv.Itoa(48<<20))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mapped: 50331648 bytes of the keeper's memory", "round 2: 50331648 bytes"} {
		if !strings.Contains(out, want) {
			t.Errorf("the visitor does not say %q:\n%s", want, out)
		}
	}
}

// memoryLimit asks for more memory than the container may have: a clean refusal
// that names the limit, and nobody is killed for it.
func memoryLimit(t *testing.T, p *project) {
	limited := []string{"-m", "32m"}
	out, err := p.application("node1", limited, "/visitor", "-rounds", "1", "-size", strconv.Itoa(64<<20))
	if err == nil {
		t.Fatalf("64 MiB fit into 32:\n%s", out)
	}
	line := ""
	for l := range strings.Lines(out) {
		if strings.Contains(l, "visitor: ") {
			line = strings.TrimSpace(l)
		}
	}
	t.Log(line)
	if !strings.Contains(line, "out of memory") || !strings.Contains(line, "/memory.") || !strings.Contains(line, "of 33554432 bytes") {
		t.Errorf("the visitor ended with %q, want ENOMEM and the limit of 33554432 bytes by name", out)
	}
	if out, err := p.application("node1", limited, "/visitor", "-rounds", "1", "-size", strconv.Itoa(8<<20)); err != nil {
		t.Errorf("8 MiB do not fit into 32:\n%s", out)
	}
	docker(t, "exec", p.container("node1"), "/fabricd", "health")
}

// buffersLogged compares what fabricd says of its UDP buffers with what the
// kernel allows: it speaks up only with reason, and runs all the same.
func buffersLogged(t *testing.T, p *project) {
	limit := 1 << 62
	for _, key := range []string{"net/core/rmem_max", "net/core/wmem_max"} {
		n, err := strconv.Atoi(strings.TrimSpace(readSysctl(t, key)))
		if err != nil {
			t.Fatal(err)
		}
		limit = min(limit, n)
	}
	small := 2*limit < 7<<20 // the kernel doubles what it is asked for
	for _, service := range daemons {
		if said := strings.Contains(logs(t, p.container(service)), "UDP buffers are"); said != small {
			t.Errorf("%s: buffers of %d bytes are allowed, and it is %v that it complains", service, limit, said)
		}
	}
}

// twoNetworks starts a node whose first network is not the cluster's: it
// advertises the address on the cluster's.
func twoNetworks(t *testing.T, p *project) {
	docker(t, "network", "create", p.name+"-aaa")
	defer docker(t, "network", "rm", p.name+"-aaa")
	id := docker(t, "create", "--name", p.name+"-both", "--network", p.name+"-aaa", "--read-only", "--cap-drop", "ALL",
		"--tmpfs", "/run/fabricd:uid=65532,mode=0750", "--tmpfs", "/var/lib/fabricd:uid=65532,mode=0700",
		"-v", p.name+"_join:/run/join:ro", "-e", "FABRIC_JOIN=host:7700", "-e", "FABRIC_TOKEN_FILE=/run/join/token",
		"-e", "FABRIC_NAME=both", p.images.fabricd)
	defer docker(t, "rm", "-f", id)
	docker(t, "network", "connect", p.name+"_default", id)
	docker(t, "start", id)
	host := p.container("host")
	eventually(t, waitLimit, func() error {
		n, ok := nodes(t, host)["both"]
		if !ok {
			return fmt.Errorf("the host does not see it:\n%s", lastLines(logs(t, id), 5))
		}
		want := inspect[containerInfo](t, id).NetworkSettings.Networks[p.name+"_default"].IPAddress
		if len(n.Addresses) != 1 || n.Addresses[0] != want+":7700" {
			return fmt.Errorf("it advertises %v, want %s", n.Addresses, want)
		}
		return nil
	})
	docker(t, "exec", p.container("node2"), "/fabricd", "ping", strconv.Itoa(nodes(t, host)["both"].ID), "--count", "1")
	docker(t, "stop", "-t", "5", id)
}

// killedApplications kills applications in the middle of their work: their
// node forgets them, and nothing of them has a name that could be left.
func killedApplications(t *testing.T, p *project) {
	node := p.container("node1")
	count := func(table string) int {
		var rows []any
		var answer map[string]json.RawMessage
		text := docker(t, "exec", node, "/fabricd", table, "--json")
		if json.Unmarshal([]byte(text), &rows) == nil {
			return len(rows)
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || json.Unmarshal(answer[table], &rows) != nil {
			t.Fatalf("fabricd %s --json: %s", table, text)
		}
		return len(rows)
	}
	windows, conns := count("windows"), count("conns")
	for i := range 3 {
		name := fmt.Sprintf("%s-app%d", p.name, i)
		docker(t, append(append([]string{"run", "-d", "--name", name, "--network", "none"}, p.onNode("node1")...),
			p.images.apps, "/visitor", "-every", "0s", "-size", "1048576")...)
		waitFor(t, waitLimit, name, "round 3: ", 0)
		if w, c := count("windows"), count("conns"); w <= windows || c <= conns {
			t.Errorf("with one more visitor the node has %d windows and %d connections, before %d and %d", w, c, windows, conns)
		}
		// Two containers that share nothing but the socket talk through memory.
		eventually(t, waitLimit, func() error {
			if text := docker(t, "exec", node, "/fabricd", "why"); strings.Count(text, "messages  shared-memory path") < 2 {
				return fmt.Errorf("their messages do not go through a shared-memory path:\n%s", text)
			}
			return nil
		})
		docker(t, "kill", name)
		if changed := docker(t, "diff", name); strings.Contains(changed, "/tmp") || strings.Contains(changed, "/dev/shm") {
			t.Errorf("the killed visitor left\n%s", changed)
		}
		docker(t, "rm", name)
		eventually(t, waitLimit, func() error {
			if w, c := count("windows"), count("conns"); w != windows || c != conns {
				return fmt.Errorf("the node has %d windows and %d connections, want %d and %d", w, c, windows, conns)
			}
			return nil
		})
	}
	for _, service := range []string{"node1", "keeper"} {
		nothingInMemoryFolders(t, service, inspect[containerInfo](t, p.container(service)).State.Pid)
	}
	if files, err := filepath.Glob("/dev/shm/*fabric*"); err != nil || len(files) > 0 {
		t.Errorf("the machine's /dev/shm holds %q, %v", files, err)
	}
}

// killedNode kills the keeper's node and starts it again: the visitor is notified of
// both, and goes on.
func killedNode(t *testing.T, p *project) {
	visitor, node := p.container("visitor"), p.container("node1")
	at, before := len(logs(t, visitor)), nodes(t, node)["node1"].Generation
	docker(t, "kill", node)
	at = waitFor(t, waitLimit, visitor, "removed: ", at)
	if changed := docker(t, "diff", node); strings.Contains(changed, "/tmp") || strings.Contains(changed, "/dev/shm") {
		t.Errorf("the killed node left\n%s", changed)
	}
	docker(t, "start", node)
	at = waitFor(t, waitLimit, visitor, "connected: ", at)
	waitFor(t, waitLimit, visitor, "round ", at)
	if n := nodes(t, node)["node1"]; n.Generation != before+1 {
		t.Errorf("the node is back as %+v, want the generation after %d", n, before)
	}
}

// stoppedNode stops the keeper's node as an operator does: it leaves, which the
// others are notified at once.
func stoppedNode(t *testing.T, p *project) {
	visitor, node := p.container("visitor"), p.container("node1")
	at := len(logs(t, visitor))
	dockers := stop(t, p.container("keeper")) // which ends at once: the rest is Docker's
	took := stop(t, node)
	t.Logf("a node was asked to end and had left after %v, of which %v are Docker's", took.Round(time.Millisecond), dockers.Round(time.Millisecond))
	if took > 2*time.Second+dockers {
		t.Errorf("it took %v, want 2s at most beside the %v of Docker", took, dockers)
	}
	if c := inspect[containerInfo](t, node); c.State.ExitCode != 0 {
		t.Errorf("it ended with code %d, want 0", c.State.ExitCode)
	}
	waitFor(t, waitLimit, visitor, "removed: left", at)
	docker(t, "start", node, p.container("keeper"))
	waitFor(t, waitLimit, visitor, "connected: ", at)
}

// stop stops a container and returns the time from SIGTERM to its end, by
// Docker's own events.
func stop(t *testing.T, container string) time.Duration {
	t.Helper()
	since := time.Now()
	docker(t, "stop", "-t", "10", container)
	var killed, died int64
	out := docker(t, "events", "--since", strconv.FormatInt(since.Unix()-1, 10), "--until", strconv.FormatInt(time.Now().Unix()+1, 10),
		"--filter", "container="+container, "--format", "{{json .}}")
	for line := range strings.Lines(out) {
		var e struct {
			Action   string
			TimeNano int64 `json:"timeNano"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		switch {
		case e.TimeNano < since.UnixNano():
		case e.Action == "kill" && killed == 0:
			killed = e.TimeNano
		case e.Action == "die":
			died = e.TimeNano
		}
	}
	if killed == 0 || died == 0 {
		t.Fatalf("Docker reports no signal or no end:\n%s", out)
	}
	return time.Duration(died - killed)
}

// hostRestarted restarts the host: the nodes and the applications' connections
// do not notice, and it is node 0 again.
func hostRestarted(t *testing.T, p *project) {
	visitor, host, node := p.container("visitor"), p.container("host"), p.container("node2")
	at := len(logs(t, visitor))
	before := nodes(t, node)
	docker(t, "restart", "-t", "5", host)
	eventually(t, waitLimit, func() error {
		if all := nodes(t, node); len(all) != 3 || all["host"].Generation <= before["host"].Generation || all["node2"].Generation != before["node2"].Generation {
			return fmt.Errorf("node2 sees %v", all)
		}
		return nil
	})
	all := logs(t, visitor)[at:]
	if strings.Contains(all, "connected: ") {
		t.Errorf("the visitor had to connect again:\n%s", all)
	}
	waitFor(t, waitLimit, visitor, "round ", at+len(all))
}

// readSysctl reads a setting of the kernel.
func readSysctl(t *testing.T, key string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc/sys", key))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
