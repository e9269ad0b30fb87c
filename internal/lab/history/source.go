package history

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// A Role is the kind of process that writes a log.
type Role string

const (
	RoleLab    Role = "lab"    // the runner
	RoleDaemon Role = "daemon" // a fabricd
	RoleApp    Role = "app"    // an application
)

// MaxNode is the highest index of a node.
const MaxNode = 4095

// A Source names one process of a run: it is a log of its own. A restarted
// process is another source. The zero Source is none.
type Source struct {
	Role Role
	Node int // its index; 0 for the lab
	Run  int // counts the starts of this role of this node from 1; 0 for the lab
}

// Lab is the source of the runner's records.
var Lab = Source{Role: RoleLab}

// Daemon returns the source of the run-th start of the daemon of a node.
func Daemon(node, run int) Source { return Source{RoleDaemon, node, run} }

// App returns the source of the run-th start of the application of a node.
func App(node, run int) Source { return Source{RoleApp, node, run} }

// String returns the source as "lab", "daemon:2:1" or "app:2:1", the form that
// [ParseSource] accepts.
func (s Source) String() string {
	if s.Role == RoleLab {
		return string(RoleLab)
	}
	return string(s.Role) + ":" + strconv.Itoa(s.Node) + ":" + strconv.Itoa(s.Run)
}

// ParseSource parses the form that [Source.String] returns, and no other.
func ParseSource(text string) (Source, error) {
	if text == string(RoleLab) {
		return Lab, nil
	}
	role, rest, _ := strings.Cut(text, ":")
	node, run, _ := strings.Cut(rest, ":")
	s := Source{Role: Role(role)}
	s.Node, _ = strconv.Atoi(node)
	s.Run, _ = strconv.Atoi(run)
	if err := s.check(); err != nil || s.Role == RoleLab || s.String() != text {
		return Source{}, fmt.Errorf("source %q: want lab, daemon:NODE:RUN or app:NODE:RUN", text)
	}
	return s, nil
}

// check reports a source that is none.
func (s Source) check() error {
	switch {
	case s == Lab:
		return nil
	case s.Role != RoleDaemon && s.Role != RoleApp,
		s.Node < 0 || s.Node > MaxNode,
		s.Run < 1:
		return fmt.Errorf("source %q: want lab, daemon:NODE:RUN or app:NODE:RUN", s.String())
	}
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (s Source) MarshalText() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	return []byte(s.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Source) UnmarshalText(text []byte) error {
	parsed, err := ParseSource(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

// compare orders sources: the lab, then daemons, then applications.
func (s Source) compare(t Source) int {
	rank := func(r Role) int { return strings.Index("lab daemon app", string(r)) }
	return cmp.Or(rank(s.Role)-rank(t.Role), s.Node-t.Node, s.Run-t.Run)
}
