package state

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Advice for damaged files. Each is the last part of one line.
const (
	adviseRestore = "restore the whole state directory from a backup, or move it away and set the node up anew"
	adviseRejoin  = "move the state directory away and join again with a token"
	adviseLeases  = "restore the whole state directory from a backup, or start once with --rebuild-leases"
	adviseNewer   = "run the newer fabricd"
)

// InitOptions describe a new cluster's host.
type InitOptions struct {
	Options
	Cluster addr.UUID // not zero
	Node    addr.UUID // zero: make one
	Name    string    // at most 64 bytes
	// Secrets are stored with the rest: the authority, the host's
	// credentials, the keyring, the tokens.
	Secrets map[SecretName][]byte
}

// Init makes the state directory of a new cluster's host and opens it. A
// directory that already holds a node's state is refused and left as it is; one
// where an earlier Init was interrupted is begun anew.
func Init(dir string, opts InitOptions) (*State, error) {
	if opts.Cluster.IsZero() {
		return nil, fmt.Errorf("initialize %s: the zero UUID is no cluster", dir)
	}
	id := Identity{Role: Host, Cluster: opts.Cluster, Node: opts.Node, Name: opts.Name}
	s, err := lockDir(dir, opts.Options, true)
	if err != nil {
		return nil, err
	}
	if err := s.create(id, opts.Secrets); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Prepare opens the state directory of a plain node, and makes it if there is
// none: then the node gets its UUID, which it keeps for good, and belongs to no
// cluster until [State.Join].
func Prepare(dir, name string, opts Options) (*State, error) {
	s, err := lockDir(dir, opts, true)
	if err != nil {
		return nil, err
	}
	if _, err = s.get(fileIdentity); missing(err) {
		err = s.create(Identity{Role: Node, Node: opts.Node, Name: name}, nil)
	} else {
		err = s.load(opts)
	}
	if err == nil && s.id.Role != Node {
		err = fmt.Errorf("state directory %s: %w: it is the host's; run with --role host or another --state-dir", dir, ErrRole)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Open opens a directory that [Init] or [Prepare] made. It refuses damaged state,
// except files that can be rebuilt without going back: a plain node's epoch, lease
// and members, and the reset key; [State.Notes] lists these.
func Open(dir string, opts Options) (*State, error) {
	s, err := lockDir(dir, opts, false)
	if err != nil {
		return nil, err
	}
	if err := s.load(opts); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// A Joined is the data that a node received when it joined.
type Joined struct {
	Cluster addr.UUID
	Node    addr.UUID // that the host has chosen; zero: as the directory was made
	// Secrets are at least the credentials and the keyring; with an
	// operator's CA, the keyring.
	Secrets map[SecretName][]byte
}

// Join stores the data that a node received from its cluster. It may be called again,
// for the same cluster. The node belongs to the cluster once Join returns nil; after
// a failure or a crash in between it joins again.
func (s *State) Join(j Joined) error {
	if j.Cluster.IsZero() || j.Secrets[SecretKeyring] == nil {
		return errors.New("join: want a cluster and its keyring")
	}
	if err := s.CheckCluster(j.Cluster); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id.Role != Node {
		return fmt.Errorf("join: %w: a host has its own cluster", ErrRole)
	}
	if err := s.putSecretsLocked(j.Secrets); err != nil {
		return err
	}
	id := s.id
	id.Cluster = j.Cluster
	if !j.Node.IsZero() {
		id.Node = j.Node
	}
	if s.id == id {
		return nil
	}
	if err := s.put(fileIdentity, id.encode()); err != nil {
		return err
	}
	s.id = id
	return nil
}

// lockDir locks a directory, which it may make, and removes leftovers of a crash.
func lockDir(dir string, opts Options, make bool) (*State, error) {
	opts = opts.withDefaults()
	s := &State{dir: dir, fs: opts.FS, now: opts.Now, secrets: map[SecretName][]byte{}}
	if !make {
		if _, err := s.fs.List(dir); missing(err) {
			return nil, s.notInitialized()
		}
	}
	if err := s.fs.MakeDir(dir); err != nil {
		return nil, fmt.Errorf("state directory %s: %w", dir, err)
	}
	lock, err := s.fs.Lock(s.path(fileLock))
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w", dir, err)
	}
	s.lock = lock
	if err := removeTemporary(s.fs, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("state directory %s: %w", dir, err), s.Close())
	}
	return s, nil
}

func (s *State) notInitialized() error {
	return fmt.Errorf("state directory %s: %w: run `fabricd init` on the host, or join with a token", s.dir, ErrNotInitialized)
}

// create writes a new directory's files; the identity is the last of them and
// makes it valid.
func (s *State) create(id Identity, secrets map[SecretName][]byte) error {
	if err := checkName(id.Name); err != nil {
		return err
	}
	if err := s.mayCreate(); err != nil {
		return err
	}
	id.Created = s.now().UTC().Truncate(time.Second)
	if id.Node.IsZero() {
		id.Node = NewUUID()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.writeNewLocked(id, secrets); err != nil {
		return err
	}
	s.id = id
	return nil
}

// mayCreate refuses a directory with state in it, unless it is the rest of an
// interrupted attempt, which it removes. Files that are not ours (a volume's
// lost+found) do not matter.
func (s *State) mayCreate() error {
	names, err := s.fs.List(s.dir)
	if err != nil {
		return fmt.Errorf("state directory %s: %w", s.dir, err)
	}
	if slices.Contains(names, fileIdentity) {
		return fmt.Errorf("state directory %s: %w: it holds a node's state; to begin a new cluster use another --state-dir or move it away", s.dir, ErrInitialized)
	}
	var ours []string
	for _, name := range names {
		if isStateFile(name) {
			ours = append(ours, name)
		}
	}
	if len(ours) > 0 && !slices.Contains(names, fileMarker) {
		return &FileError{s.path(fileIdentity), adviseRestore, damaged("missing beside %s", ours[0])}
	}
	for _, name := range ours {
		if err := s.fs.Remove(s.path(name)); err != nil {
			return fmt.Errorf("state directory %s: %w", s.dir, err)
		}
	}
	return nil
}

func isStateFile(name string) bool {
	switch name {
	case fileEpoch, fileTerm, fileLease, fileMembers, fileLeases, fileSealed:
		return true
	}
	return SecretName(name).known()
}

func (s *State) writeNewLocked(id Identity, secrets map[SecretName][]byte) error {
	steps := []func() error{
		func() error { return s.put(fileMarker, nil) },
		func() error { return s.put(fileEpoch, encodeCounter(0)) },
		func() error { return s.put(fileTerm, encodeCounter(0)) },
		func() error { return s.put(fileMembers, encodeMembers(nil)) },
		func() error { return s.putSecretLocked(SecretResetKey, newResetKey()) },
		func() error { return s.putSecretsLocked(secrets) },
		func() error { return s.newLeases(id.Role) },
		func() error { return s.put(fileIdentity, id.encode()) },
		s.removeMarker,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) newLeases(role Role) (err error) {
	if role == Host {
		s.leases, err = createLeases(s.fs, s.dir, leaseMeta{}, &s.trouble)
	}
	return err
}

// removeMarker ends the creation of a directory.
func (s *State) removeMarker() error {
	if err := s.fs.Remove(s.path(fileMarker)); err != nil && !missing(err) {
		return writeError(s.path(fileMarker), err)
	}
	return nil
}

// newResetKey makes a key of QUIC's stateless resets.
func newResetKey() []byte {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return key
}

// load reads every file of an existing directory.
func (s *State) load(opts Options) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := load(s, fileIdentity, &s.id, decodeIdentity)
	if missing(err) {
		return s.notThere()
	}
	if err != nil {
		return s.refuse(fileIdentity, adviseRestore, err)
	}
	for _, step := range []func() error{s.removeMarker, s.loadSecrets, s.loadTerm, s.loadLease, s.loadEpoch, s.loadMembers} {
		if err := step(); err != nil {
			return err
		}
	}
	if s.id.Role == Host {
		return s.loadLeases(opts.RebuildLeases)
	}
	return nil
}

// notThere distinguishes an empty directory from one that lost its identity.
func (s *State) notThere() error {
	names, err := s.fs.List(s.dir)
	if err != nil {
		return fmt.Errorf("state directory %s: %w", s.dir, err)
	}
	if slices.ContainsFunc(names, isStateFile) && !slices.Contains(names, fileMarker) {
		return &FileError{s.path(fileIdentity), adviseRestore, damaged("missing")}
	}
	return s.notInitialized()
}

// refuse makes the one line about a file that cannot be used.
func (s *State) refuse(name, advice string, err error) error {
	if missing(err) {
		err = damaged("missing")
	}
	if errors.Is(err, ErrNewer) {
		advice = adviseNewer + ", or " + advice
	}
	return &FileError{s.path(name), advice, err}
}

func (s *State) loadSecrets() error {
	for _, name := range secretNames {
		b, err := s.get(string(name))
		switch {
		case err == nil:
			s.secrets[name] = slices.Clone(b)
		case name == SecretResetKey && replaceable(err):
			if err := s.renewResetKey(err); err != nil {
				return err
			}
		case missing(err) && !s.needs(name):
		default:
			return s.refuse(string(name), s.adviseSecret(), err)
		}
	}
	return nil
}

// needs reports whether a directory cannot be without a secret.
func (s *State) needs(name SecretName) bool {
	return name == SecretKeyring && s.id.Role == Node && !s.id.Cluster.IsZero()
}

func (s *State) adviseSecret() string {
	if s.id.Role == Host {
		return adviseRestore
	}
	return adviseRejoin
}

// replaceable reports whether a file is damaged or missing, as opposed to unreadable
// or newer. A file is rebuilt only then.
func replaceable(err error) bool {
	return missing(err) || errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer)
}

// renewResetKey replaces a lost reset key. It only costs the peers of the
// previous start the quick answer that this process has forgotten them.
func (s *State) renewResetKey(reason error) error {
	if err := s.putSecretLocked(SecretResetKey, newResetKey()); err != nil {
		return err
	}
	s.note("state file %s: %v: made a new key", s.path(string(SecretResetKey)), reason)
	return nil
}

// load reads a file and decodes it to v, which an error leaves as it is.
func load[T any](s *State, name string, v *T, decode func([]byte) (T, error)) error {
	b, err := s.get(name)
	if err != nil {
		return err
	}
	decoded, err := decode(b)
	if err == nil {
		*v = decoded
	}
	return err
}

// loadTerm reads the accepted term, which nothing here can rebuild.
func (s *State) loadTerm() error {
	if err := load(s, fileTerm, &s.term, decodeCounter); err != nil {
		return s.refuse(fileTerm, s.adviseSecret(), err)
	}
	return nil
}

// loadLease reads the lease. Without it the host finds the node by its UUID and
// grants the next generation, so a damaged one is dropped.
func (s *State) loadLease() error {
	err := load(s, fileLease, &s.lease, decodeLease)
	if err == nil || missing(err) {
		return nil
	}
	if s.id.Role == Host || !replaceable(err) {
		return s.refuse(fileLease, s.adviseSecret(), err)
	}
	if removeErr := s.fs.Remove(s.path(fileLease)); removeErr != nil {
		return writeError(s.path(fileLease), removeErr)
	}
	s.note("state file %s: %v: dropped; the host grants the next generation", s.path(fileLease), err)
	return nil
}

// epochBase is the lowest time that counts as a set clock: 2020-01-01.
var epochBase = time.Unix(1577836800, 0)

// loadEpoch reads the boot epoch. A plain node's damaged one is rebuilt from
// the clock: a counter that counts starts is always below the number of seconds
// since 1970, and a counter rebuilt before was the seconds of an earlier time
// and a few starts.
func (s *State) loadEpoch() error {
	err := load(s, fileEpoch, &s.epoch, decodeCounter)
	if err == nil {
		return nil
	}
	now := s.now()
	if s.id.Role == Host || !replaceable(err) || now.Before(epochBase) {
		return s.refuse(fileEpoch, s.adviseSecret(), err)
	}
	count := min(max(uint64(now.Unix()), s.lease.Epoch>>32), 1<<32-2)
	s.epoch = count<<32 | 1<<32 - 1
	if err := s.put(fileEpoch, encodeCounter(s.epoch)); err != nil {
		return err
	}
	s.note("state file %s: %v: rebuilt from the clock, higher than before", s.path(fileEpoch), err)
	return nil
}

// loadMembers reads the members, which are hints: without them the node needs
// --join.
func (s *State) loadMembers() error {
	err := load(s, fileMembers, &s.members, decodeMembers)
	if err == nil {
		return nil
	}
	if !replaceable(err) {
		return s.refuse(fileMembers, s.adviseSecret(), err)
	}
	if err := s.put(fileMembers, encodeMembers(nil)); err != nil {
		return err
	}
	s.note("state file %s: %v: forgot the known members", s.path(fileMembers), err)
	return nil
}

// loadLeases reads the host's lease table.
func (s *State) loadLeases(rebuild bool) (err error) {
	s.leases, err = openLeases(s.fs, s.dir, &s.trouble)
	if err == nil {
		return nil
	}
	var file *FileError
	if !rebuild || !errors.As(err, &file) || !replaceable(err) {
		return err
	}
	floor := s.rebuiltFloorLocked()
	s.leases, err = createLeases(s.fs, s.dir, leaseMeta{Term: uint64(floor), Floor: floor}, &s.trouble)
	if err != nil {
		return err
	}
	s.note("%v: began a new lease table; generations continue from %d", file, floor)
	return nil
}

const (
	// rebuildStep is more than the generations of one ID can be above the term in
	// which they were granted.
	rebuildStep = 1 << 20
	// maxRebuild is the last second since 1970 with which a rebuilt table begins:
	// a clock that is farther ahead must not use up the generations.
	maxRebuild = 3 << 30
)

// rebuiltFloorLocked returns a generation above all that a lost table can have
// granted: far above its terms, which have a file of their own, and above the
// seconds since 1970, so that no copy of the directory gets there by its age. The
// table's term begins with it too: the next rebuilt table is above this one,
// whatever the clock shows then.
func (s *State) rebuiltFloorLocked() addr.Generation {
	floor := max(s.term, s.ageLocked()) + rebuildStep
	if now := s.now().Unix(); now < maxRebuild {
		floor = max(floor, uint64(max(now, 0)))
	}
	return addr.Generation(min(floor, maxTerm))
}
