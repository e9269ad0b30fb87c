package daemon

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/internal/transport"
)

// allProviders are those that a node can have, in the order of which the first
// is preferred when nothing was said.
var allProviders = []string{"quic", "tcp"}

// sharedMemory names the path between two applications of one node, past the daemon. It is used
// unless it is left out; a list that names it makes its failure an error.
const sharedMemory = "shm"

// autoProviders stands for all of them, in that order.
const autoProviders = "auto"

// providersAllowed describes the valid values of the setting.
const providersAllowed = "quic, tcp or both, the preferred one first, and shm to insist on shared memory inside the node; or ^ and those to leave out; or auto: all, quic first"

// validProviders accepts the names as they were written. A list names either the providers to use or,
// with ^ before it, those to leave out.
func validProviders(items []string) bool {
	if slices.Equal(items, []string{autoProviders}) {
		return true
	}
	names := leftOut(items)
	if names == nil {
		names = items
	}
	for i, name := range names {
		if name != sharedMemory && !slices.Contains(allProviders, name) || slices.Contains(names[:i], name) {
			return false
		}
	}
	return len(names) > 0
}

// leftOut returns the providers that items leave out, nil if they name those to
// use.
func leftOut(items []string) []string {
	if len(items) == 0 || !strings.HasPrefix(items[0], "^") {
		return nil
	}
	names := slices.Clone(items)
	names[0] = strings.TrimPrefix(names[0], "^")
	return names
}

// linkProviders returns the providers of links to use, and whether the setting lists them in this order.
func (c *Config) linkProviders() (names []string, named bool) {
	out := leftOut(c.Providers)
	if out == nil && !slices.Equal(c.Providers, []string{autoProviders}) {
		return slices.DeleteFunc(slices.Clone(c.Providers), func(name string) bool { return name == sharedMemory }), true
	}
	return slices.DeleteFunc(slices.Clone(allProviders), func(name string) bool { return slices.Contains(out, name) }), false
}

// StreamsOnly reports whether none of the providers that links take sends packets of its
// own: a fault that is one of packets would do nothing.
func (c *Config) StreamsOnly() bool {
	names, _ := c.linkProviders()
	return !slices.Contains(names, "quic")
}

// sharesMemory reports whether two applications of this node may talk past it, and
// whether they have to be able to.
func (c *Config) sharesMemory() (may, must bool) {
	out := leftOut(c.Providers)
	return !slices.Contains(out, sharedMemory), out == nil && slices.Contains(c.Providers, sharedMemory)
}

// checkProviders finds contradictions between providers and the settings of single providers.
func (c *Config) checkProviders(report func(key, text, allowed string)) {
	names, _ := c.linkProviders()
	if len(names) == 0 {
		report("providers", strings.Join(c.Providers, ","), "want at least one of quic and tcp")
		return
	}
	if slices.Contains(names, "tcp") {
		return
	}
	if c.TCPPlaintext {
		report("tcp-plaintext", "true", "providers leave tcp out; want tcp among them, or false")
	}
}

// Unavailable is a provider that a node was to use, and cannot.
type Unavailable struct {
	Provider string `json:"provider"`
	Reason   string `json:"reason"`
}

// openEach opens the providers of the names. One that is the only one has to
// work; of several, those that do not are left out, as long as one does. On an
// error those that were opened are the caller's too.
func openEach(names []string, open func(name string) (transport.Provider, error)) (all []transport.Provider, none []Unavailable, err error) {
	for _, name := range names {
		p, failed := open(name)
		if failed == nil {
			all = append(all, p)
			continue
		}
		none = append(none, Unavailable{name, oneLine(failed.Error())})
		err = fmt.Errorf("provider %s: %w", name, failed)
	}
	if len(all) > 0 {
		return all, none, nil
	}
	return nil, none, err
}
