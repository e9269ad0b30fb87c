package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// DefaultImage is the image of fabricd that `make image` makes.
const DefaultImage = "fabricd:dev"

// containers is the site of the compose lab: each daemon and each application
// is a container of fabricd's image, without privilege, on a network of the
// run's own. A node's two containers share a directory with the sockets.
type containers struct {
	docker *docker
	image  string
	name   Name
	filter filter
	uid    int // of the processes in the containers

	network string         // ID; set by open
	subnet  netip.Addr     // its first address; set by open
	wg      sync.WaitGroup // waiting for containers

	mu      sync.Mutex // guards the field below
	daemons map[int]*container
}

// nonRoot is the user of the image.
const nonRoot = 65532

func newContainers(image string, name Name) *containers {
	if image == "" {
		image = DefaultImage
	}
	c := &containers{docker: newDocker(dockerSocket()), image: image, name: name, uid: nonRoot, daemons: make(map[int]*container)}
	if uid := os.Geteuid(); uid != 0 {
		c.uid = uid // the directories are this user's
	}
	c.filter = filter{
		family: "inet",
		enter: func(node int) []string {
			return []string{"nsenter", "-t", fmt.Sprint(c.daemonPID(node)), "-n"}
		},
		addr: func(node int) netip.Addr { return c.place(node).advertise },
	}
	return c
}

func (c *containers) check(ctx context.Context, s *scenario.Schedule) error {
	for _, a := range s.Actions {
		if lacks := filterLacks(); lacks != "" && a.Network != nil && a.Network.Do == scenario.Reject {
			return refusef("%s: the compose lab needs %s for it", a.What(), lacks)
		}
	}
	return c.docker.present(ctx, c.image)
}

// filterLacks names the requirement that this process lacks to filter the packets of
// containers; "": none.
func filterLacks() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	for _, tool := range []string{"nsenter", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + ", which is not installed,"
		}
	}
	return ""
}

// subnets is how many subnets are tried: another network may have one.
const subnets = 64

// open makes the network.
func (c *containers) open(ctx context.Context, _ int) error {
	var err error
	for i := range subnets {
		c.subnet = netip.AddrFrom4([4]byte{10, 213, byte(os.Getpid() + i), 0})
		var made struct {
			ID string `json:"Id"`
		}
		err = c.docker.ask(ctx, http.MethodPost, "/networks/create", map[string]any{
			"Name": string(c.name), "Driver": "bridge", "CheckDuplicate": true, "Labels": c.labels(),
			"IPAM": map[string]any{"Config": []any{map[string]string{"Subnet": c.subnet.String() + "/24"}}},
		}, &made)
		if err == nil {
			c.network = made.ID
			return nil
		}
		if !strings.Contains(err.Error(), "overlap") {
			return err
		}
	}
	return err
}

func (c *containers) labels() map[string]string { return map[string]string{runLabel: string(c.name)} }

// close removes the containers and the network.
func (c *containers) close(ctx context.Context) error {
	err := c.docker.removeLabelled(ctx, string(c.name))
	c.wg.Wait()
	c.docker.close()
	return err
}

func (c *containers) place(node int) place {
	b := c.subnet.As4()
	b[3] = byte(node + 10)
	return place{bind: netip.IPv4Unspecified(), advertise: netip.AddrFrom4(b), data: dataPort, gossip: gossipPort}
}

// path: the node's directory is /lab in its containers.
func (c *containers) path(_ *node, name string) string { return filepath.Join("/lab", name) }

func (c *containers) start(ctx context.Context, s *node, name string, args ...string) (child, error) {
	onNetwork := args[0] == "run"
	p, err := c.launch(ctx, s, name, args, onNetwork)
	if err != nil {
		return nil, err
	}
	if onNetwork {
		c.mu.Lock()
		c.daemons[s.index] = p
		c.mu.Unlock()
	}
	return p, nil
}

// launch makes and starts a container.
func (c *containers) launch(ctx context.Context, s *node, name string, args []string, onNetwork bool) (*container, error) {
	// Another user reads the files of the lab.
	if err := os.Chmod(s.dir, 0o777); err != nil {
		return nil, err
	}
	// A node takes a token only from a file that is its own. The host makes its own one.
	if err := os.Chown(s.file("join.token"), c.uid, c.uid); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	host := map[string]any{
		"NetworkMode": "none", "ReadonlyRootfs": true, "CapDrop": []string{"ALL"},
		"SecurityOpt": []string{"no-new-privileges"}, "PidsLimit": 256,
		"Binds": []string{s.dir + ":/lab"},
	}
	spec := map[string]any{
		"Image": c.image, "Cmd": args, "User": fmt.Sprintf("%d:%d", c.uid, c.uid), "Labels": c.labels(),
		"Env": []string{"GOTRACEBACK=all", "FABRICD_PANIC=crash"}, "HostConfig": host, "Healthcheck": map[string]any{"Test": []string{"NONE"}},
	}
	if onNetwork {
		host["NetworkMode"] = string(c.name)
		spec["NetworkingConfig"] = map[string]any{"EndpointsConfig": map[string]any{string(c.name): c.endpoint(s.index)}}
	}
	var made struct {
		ID string `json:"Id"`
	}
	full := fmt.Sprintf("%s-n%d-%s", c.name, s.index, name)
	if err := c.docker.ask(ctx, http.MethodPost, "/containers/create?name="+url.QueryEscape(full), spec, &made); err != nil {
		return nil, err
	}
	if err := c.docker.ask(ctx, http.MethodPost, "/containers/"+made.ID+"/start", nil, nil); err != nil {
		return nil, err
	}
	var seen struct{ State struct{ Pid int } }
	if err := c.docker.ask(ctx, http.MethodGet, "/containers/"+made.ID+"/json", nil, &seen); err != nil {
		return nil, err
	}
	p := &container{begun: begun{seen.State.Pid, s.file(name + ".log"), make(chan struct{})}, docker: c.docker, id: made.ID}
	c.wg.Go(p.wait)
	return p, nil
}

// endpoint is a node's place on the network.
func (c *containers) endpoint(node int) map[string]any {
	return map[string]any{"IPAMConfig": map[string]string{"IPv4Address": c.place(node).advertise.String()}}
}

func (c *containers) daemonOf(node int) *container {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.daemons[node]
}

func (c *containers) daemonPID(node int) int {
	if d := c.daemonOf(node); d != nil {
		return d.pid()
	}
	return 0
}

// enter does nothing: this machine reaches its containers.
func (c *containers) enter(int) error { return nil }

func (c *containers) breaks(a scenario.Action) bool {
	switch {
	case a.Link != nil:
		// The kernel's packets of TCP are longer there than those of a network.
		return byKernel(a.Link) && a.Link.MTU == 0 && filterLacks() == ""
	case a.Partition != nil:
		return filterLacks() == ""
	}
	return a.Network != nil && a.Network.Do != scenario.Garbage
}

func (c *containers) breakNetwork(ctx context.Context, a scenario.Action) (effect, error) {
	switch {
	case a.Network != nil && a.Network.Do == scenario.Disconnect:
		return c.disconnect(ctx, a.Network.Node.IDs())
	case a.Network != nil:
		return c.filter.reject(ctx, a)
	}
	return c.filter.apply(ctx, a)
}

// disconnect takes the daemons' containers off the network.
func (c *containers) disconnect(ctx context.Context, ids []int) (effect, error) {
	each := func(ctx context.Context, verb string, more func(int) map[string]any) error {
		return everywhere(ids, func(node int) error {
			d := c.daemonOf(node)
			if d == nil {
				return errNotRunning
			}
			body := more(node)
			body["Container"] = d.id
			return c.docker.ask(ctx, http.MethodPost, "/networks/"+c.network+"/"+verb, body, nil)
		})
	}
	err := each(ctx, "disconnect", func(int) map[string]any { return map[string]any{"Force": false} })
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		err := each(ctx, "connect", func(node int) map[string]any { return map[string]any{"EndpointConfig": c.endpoint(node)} })
		return uint64(len(ids)), "the container was off its network", err
	}), err
}

func (c *containers) breakPaths(context.Context, scenario.Action, []pathEnds) (effect, error) {
	return nil, errors.New("this lab does not distinguish the packets of paths")
}

// squeeze bounds processor time or memory of a node's daemon.
func (c *containers) squeeze(ctx context.Context, s *node, a scenario.Action) (effect, error) {
	d := c.daemonOf(s.index)
	if d == nil {
		return nil, errNotRunning
	}
	var set, back map[string]any
	var proof string
	if a.Memory != nil {
		limit := int64(a.Memory.Limit)
		set = map[string]any{"Memory": limit, "MemorySwap": limit} // nothing goes to swap
		back = map[string]any{"Memory": int64(1) << 40, "MemorySwap": int64(1) << 40}
		proof = "limited to " + a.Memory.Limit.String()
	} else {
		quota := max(1000, int64(float64(a.CPU.Share)/100*cpuPeriod))
		set = map[string]any{"CpuPeriod": cpuPeriod, "CpuQuota": quota}
		back = map[string]any{"CpuPeriod": cpuPeriod, "CpuQuota": -1}
		proof = fmt.Sprintf("limited to %d µs of %d", quota, cpuPeriod)
	}
	update := func(ctx context.Context, to map[string]any) error {
		return c.docker.ask(ctx, http.MethodPost, "/containers/"+d.id+"/update", to, nil)
	}
	err := update(ctx, set)
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		if err := update(ctx, back); err != nil && d.running() {
			return 1, proof, err
		}
		return 1, proof, nil
	}), err
}
