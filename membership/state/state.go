package state

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// A Role is the role that a node's directory was made for. It never changes.
type Role string

const (
	// Host is the role of the one node that grants IDs.
	Host Role = "host"
	// Node is the role of all others.
	Node Role = "node"
)

// An Identity names the owner of a directory's state.
type Identity struct {
	Role    Role
	Node    addr.UUID // of a plain node: chosen by the host when it joined; before, of no meaning
	Cluster addr.UUID // zero until a plain node has joined
	Name    string
	Created time.Time
}

// maxName bounds a node's name.
const maxName = 64

// Options configure the opening of a state directory.
type Options struct {
	// FS is the file system; nil means [OS]. The lease table's bbolt file
	// always lies in the real one.
	FS FS
	// Now reads the time; nil means [time.Now].
	Now func() time.Time
	// Node is the UUID of a plain node whose directory [Prepare] makes, for
	// certificates that exist before it; zero means make one.
	Node addr.UUID
	// RebuildLeases starts a new, empty lease table if the host's is
	// damaged or missing. Its generations begin above all that were ever
	// granted; see [Leases.Floor].
	RebuildLeases bool
	// Faults are those of the node whose directory it is, which the lease
	// table's file meets too; nil: none.
	Faults *failpoint.Node
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = OS{Faults: o.Faults}
	}
	if o.Faults != nil {
		o.FS = faulty{o.FS, o.Faults}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// A State is an open state directory. No other process can open it until it is
// closed. Its methods may be called by several goroutines.
type State struct {
	dir    string
	fs     FS
	now    func() time.Time
	leases *Leases // of a host, else nil

	trouble trouble

	mu      sync.Mutex // guards the fields below; held while a file is written
	lock    io.Closer  // nil once closed
	id      Identity
	epoch   uint64 // the last one that was handed out, or found
	booted  bool   // epoch is this start's
	term    uint64
	lease   Lease // zero: none
	members []Member
	secrets map[SecretName][]byte
	notes   []string
}

// Identity returns the owner of the state.
func (s *State) Identity() Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Joined reports whether the node belongs to a cluster.
func (s *State) Joined() bool { return !s.Identity().Cluster.IsZero() }

// Dir returns the directory.
func (s *State) Dir() string { return s.dir }

// Leases returns the host's lease table, or nil on another node.
func (s *State) Leases() *Leases { return s.leases }

// Notes returns the parts that were rebuilt when the directory was opened, one line
// each, for the log.
func (s *State) Notes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notes)
}

// CheckCluster refuses to use the state of one cluster in another.
func (s *State) CheckCluster(want addr.UUID) error {
	if have := s.Identity().Cluster; !have.IsZero() && have != want {
		return fmt.Errorf("state directory %s: %w: it is of %s, want %s; use another --state-dir", s.dir, ErrOtherCluster, have, want)
	}
	return nil
}

// Close releases the directory. It may be called twice.
func (s *State) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return nil
	}
	var err error
	if s.leases != nil {
		err = s.leases.close()
	}
	err = errors.Join(err, s.lock.Close())
	s.lock = nil
	return err
}

// identityJSON is the content of the identity file.
type identityJSON struct {
	Role    Role      `json:"role"`
	Node    addr.UUID `json:"node"`
	Cluster addr.UUID `json:"cluster,omitzero"`
	Name    string    `json:"name"`
	Created int64     `json:"created"` // seconds since 1970
}

func (id Identity) encode() []byte {
	return mustJSON(identityJSON{id.Role, id.Node, id.Cluster, id.Name, id.Created.Unix()})
}

func decodeIdentity(b []byte) (Identity, error) {
	var j identityJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return Identity{}, damaged("%w", err)
	}
	id := Identity{j.Role, j.Node, j.Cluster, j.Name, time.Unix(j.Created, 0).UTC()}
	return id, id.check()
}

func (id Identity) check() error {
	switch {
	case id.Role != Host && id.Role != Node:
		return damaged("unknown role %q", id.Role)
	case id.Node.IsZero():
		return damaged("no node UUID")
	case id.Role == Host && id.Cluster.IsZero():
		return damaged("a host without a cluster")
	case len(id.Name) > maxName:
		return damaged("a name of %d bytes", len(id.Name))
	}
	return nil
}

// checkName refuses names that would not fit the records.
func checkName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("node name of %d bytes, want at most %d", len(name), maxName)
	}
	return nil
}

// NewUUID returns a random UUID (version 4 of RFC 9562).
func NewUUID() (u addr.UUID) {
	rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}

// mustJSON encodes a value of ours, which cannot fail.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: state: encode: " + err.Error())
	}
	return b
}

// The files of a directory; each one's kind is its name.
const (
	fileLock     = "lock"
	fileMarker   = "initializing" // Init has begun and not ended
	fileIdentity = "identity"
	fileEpoch    = "epoch"
	fileTerm     = "term"
	fileLease    = "lease"
	fileMembers  = "members"
	fileLeases   = "leases.db"
	fileSealed   = "leases.seal"
)

// put stores the content of a file. The caller holds s.mu.
func (s *State) put(name string, content []byte) error {
	if s.lock == nil {
		return fmt.Errorf("write state file %s: %w", s.path(name), ErrClosed)
	}
	if len(content) > MaxFile {
		return fmt.Errorf("write state file %s: %d bytes, want at most %d", s.path(name), len(content), MaxFile)
	}
	err := writeAtomic(s.fs, s.path(name), Seal(name, content))
	s.trouble.set(&s.trouble.files, err)
	return err
}

// get returns the content of a file. A missing file is [fs.ErrNotExist].
func (s *State) get(name string) ([]byte, error) {
	b, err := s.fs.ReadFile(s.path(name), MaxFile+maxHeader)
	if err != nil {
		return nil, err
	}
	return Unseal(name, b)
}

func (s *State) path(name string) string { return filepath.Join(s.dir, name) }

// note remembers a line for [State.Notes].
func (s *State) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// A SecretName names a file of bytes that state keeps for others.
type SecretName string

const (
	// SecretAuthority is the host's CA (trust.CA.Encode).
	SecretAuthority SecretName = "authority"
	// SecretNextAuthority is the CA that follows, while the host rotates it.
	SecretNextAuthority SecretName = "authority-next"
	// SecretCredentials is the node's key, certificate and CA certificates
	// (trust.Credentials.Encode).
	SecretCredentials SecretName = "credentials"
	// SecretKeyring is the gossip keys (trust.Keyring.Encode).
	SecretKeyring SecretName = "keyring"
	// SecretTokens is the host's join tokens (trust.TokenStore.Encode).
	SecretTokens SecretName = "tokens"
	// SecretResetKey is the key of QUIC's stateless resets: 32 random bytes
	// that are made with the directory.
	SecretResetKey SecretName = "reset-key"
	// SecretKey is the private key of a node that has not joined yet
	// (trust.EncodeKey): its identity will belong to it, whatever is lost on the way.
	SecretKey SecretName = "node-key"
	// SecretEnrolments are the identities that the host knows.
	SecretEnrolments SecretName = "enrolments"
	// SecretBans are the identities that the host keeps out.
	SecretBans SecretName = "bans"
)

// secretNames are all of them, in the order in which they are read.
var secretNames = [...]SecretName{SecretAuthority, SecretCredentials, SecretKeyring, SecretTokens, SecretResetKey,
	SecretKey, SecretEnrolments, SecretBans, SecretNextAuthority}

func (n SecretName) known() bool { return slices.Contains(secretNames[:], n) }

// Secret returns a copy of a secret, or nil if it was never stored.
func (s *State) Secret(name SecretName) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.secrets[name])
}

// PutSecret stores a secret, at most [MaxFile] bytes.
func (s *State) PutSecret(name SecretName, b []byte) error {
	if !name.known() {
		return fmt.Errorf("put secret: unknown name %q", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.putSecretLocked(name, b)
}

func (s *State) putSecretLocked(name SecretName, b []byte) error {
	if err := s.put(string(name), b); err != nil {
		return err
	}
	s.secrets[name] = slices.Clone(b)
	return nil
}

// putSecretsLocked stores several, in a fixed order.
func (s *State) putSecretsLocked(secrets map[SecretName][]byte) error {
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		if !name.known() {
			return fmt.Errorf("put secret: unknown name %q", name)
		}
		if err := s.putSecretLocked(name, secrets[name]); err != nil {
			return err
		}
	}
	return nil
}

// missing reports whether err means that there is no such file.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
