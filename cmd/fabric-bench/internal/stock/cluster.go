package stock

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Command is the command of the program that is one member: it calls Run with
// the name and the address that follow.
const Command = "memberlist-member"

const (
	// seeLimit bounds the wait until everybody has seen something.
	seeLimit = 60 * time.Second
	// maxLines bounds what a member has told and nobody has taken.
	maxLines = 4096
)

// A Cluster is members in processes of their own. One goroutine uses it, which
// keeps its thread: the processes die with that.
type Cluster struct {
	program string
	members []*member
	started int // members so far, for their names
}

// A member is one process.
type member struct {
	name, address string
	cmd           *exec.Cmd
	told          chan line
	quit, ended   chan struct{}        // closed by kill; closed when its output has ended and it was waited for
	alive         map[string]bool      // whom it sees
	changed       map[string]time.Time // when that has changed
	gone          int                  // members that it has seen go
}

// A line is one of a member's and when it was read.
type line struct {
	text string
	at   time.Time
}

// Start starts n members of a program and waits until each sees all.
func Start(ctx context.Context, program string, n int) (_ *Cluster, err error) {
	c := &Cluster{program: program}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	for range n {
		if err := c.add(ctx, len(c.members)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// add starts a member in place i, and waits until it and the others see each
// other.
func (c *Cluster) add(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, seeLimit)
	defer cancel()
	join := ""
	for k, m := range c.members {
		if k != i {
			join = m.address
			break
		}
	}
	c.started++
	m, err := startMember(c.program, fmt.Sprintf("member-%d", c.started), join)
	if err != nil {
		return err
	}
	if i < len(c.members) {
		c.members[i] = m
	} else {
		c.members = append(c.members, m)
	}
	if err := m.until(ctx, func() bool { return m.address != "" }); err != nil {
		return err
	}
	for k, other := range c.members {
		if k == i {
			continue
		}
		if err := m.until(ctx, func() bool { return m.alive[other.name] }); err != nil {
			return err
		}
		if err := other.until(ctx, func() bool { return other.alive[m.name] }); err != nil {
			return err
		}
	}
	return nil
}

func startMember(program, name, join string) (*member, error) {
	cmd := exec.Command(program, Command, name, join)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	m := &member{name: name, cmd: cmd, told: make(chan line, maxLines), quit: make(chan struct{}), ended: make(chan struct{}),
		alive: map[string]bool{}, changed: map[string]time.Time{}}
	go m.read(out) // ends with the process; kill waits for it
	return m, nil
}

// read passes on what the process tells, and waits for its end.
func (m *member) read(out io.Reader) {
	defer close(m.ended)
	// How it ended is of no interest: it is killed.
	defer func() { _ = m.cmd.Wait() }()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		select {
		case m.told <- line{lines.Text(), time.Now()}:
		case <-m.quit:
			return
		}
	}
}

// kill ends the process, stopped or not, and waits for that.
func (m *member) kill() {
	select {
	case <-m.quit:
	default:
		close(m.quit)
	}
	// It fails only for a process that has ended.
	_ = m.cmd.Process.Kill()
	<-m.ended
}

// until takes what the member tells until done reports true.
func (m *member) until(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case l := <-m.told:
			m.take(l)
		case <-m.ended:
			return fmt.Errorf("%s of memberlist alone has ended", m.name)
		case <-ctx.Done():
			return fmt.Errorf("%s of memberlist alone has not seen it: %w", m.name, context.Cause(ctx))
		}
	}
	return nil
}

func (m *member) take(l line) {
	what, name, _ := strings.Cut(l.text, " ")
	switch what {
	case "at":
		m.address = name
	case "+", "-":
		m.alive[name], m.changed[name] = what == "+", l.at
		if what == "-" {
			m.gone++
		}
	}
}

// A Loss is one member that was struck.
type Loss struct {
	Seen []time.Duration // until each of the others saw it go
	// Others is how often any of these saw somebody else go meanwhile, who was
	// well.
	Others int
}

// Strike strikes member i, waits until all others see it go, and puts a new one
// in its place.
func (c *Cluster) Strike(ctx context.Context, i int, strike func(*os.Process) error) (l Loss, err error) {
	seeing, cancel := context.WithTimeout(ctx, seeLimit)
	defer cancel()
	victim := c.members[i]
	before := c.gone(i)
	began := time.Now()
	if err := strike(victim.cmd.Process); err != nil {
		return l, err
	}
	for k, m := range c.members {
		if k == i {
			continue
		}
		if err := m.until(seeing, func() bool { return !m.alive[victim.name] }); err != nil {
			return l, err
		}
		l.Seen = append(l.Seen, m.changed[victim.name].Sub(began))
	}
	l.Others = c.gone(i) - before - len(l.Seen)
	victim.kill()
	return l, c.add(ctx, i)
}

// A Joined is one member that came, from the start of its process.
type Joined struct {
	Met  time.Duration   // until it saw all others
	Seen []time.Duration // until each of these saw it
}

// Join starts one member more, waits until it and the others see each other, and
// then until these have seen it leave.
func (c *Cluster) Join(ctx context.Context) (j Joined, err error) {
	ctx, cancel := context.WithTimeout(ctx, seeLimit)
	defer cancel()
	at := len(c.members)
	began := time.Now()
	err = c.add(ctx, at)
	if len(c.members) == at { // it has not even started
		return j, err
	}
	m := c.members[at]
	defer func() {
		m.kill()
		c.members = c.members[:at]
	}()
	if err != nil {
		return j, err
	}
	for _, other := range c.members[:at] {
		j.Met = max(j.Met, m.changed[other.name].Sub(began))
		j.Seen = append(j.Seen, other.changed[m.name].Sub(began))
	}
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return j, err
	}
	for _, other := range c.members[:at] {
		if err := other.until(ctx, func() bool { return !other.alive[m.name] }); err != nil {
			return j, err
		}
	}
	return j, nil
}

// Len returns how many members there are.
func (c *Cluster) Len() int { return len(c.members) }

// Look takes what all members have told so far.
func (c *Cluster) Look() {
	for _, m := range c.members {
		m.look()
	}
}

// look takes what the member has told so far.
func (m *member) look() {
	for {
		select {
		case l := <-m.told:
			m.take(l)
		default:
			return
		}
	}
}

// Gone returns how often any member has seen another go, as far as has been
// looked at.
func (c *Cluster) Gone() int { return c.gone(-1) }

// gone returns how often all but member i have seen somebody go.
func (c *Cluster) gone(i int) (n int) {
	for k, m := range c.members {
		if k != i {
			n += m.gone
		}
	}
	return n
}

// Close ends all members.
func (c *Cluster) Close() {
	for _, m := range c.members {
		m.kill()
	}
}
