package daemon

import (
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// maxTokenFile bounds a token file, in bytes.
const maxTokenFile = 4 << 10

// Init makes a new cluster: the state directory c.StateDir of its host. It
// returns a join token, or, with an operator's CA in c.TLS, the gossip keys
// that nodes join with. If tokenFile is not empty, it writes them there and
// returns nothing. A directory that holds a node, and a file that exists, are
// left as they are.
func Init(c Config, tokenFile string) (token string, err error) {
	if tokenFile == "" {
		return initCluster(c)
	}
	_, err = os.Lstat(c.StateDir)
	isNew := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil { // the file may be in or beside it
		return "", stateProblem(c.StateDir, err)
	}
	err = WriteSecret(tokenFile, func() (string, error) { return initCluster(c) })
	if err != nil && isNew {
		_ = os.Remove(c.StateDir) // fails if it holds anything, which must stay
	}
	return "", err
}

// initCluster makes the state directory, and returns the secret for nodes to join.
func initCluster(c Config) (string, error) {
	s, text, err := initState(c)
	if errors.Is(err, state.ErrInitialized) {
		return "", problem("state-dir", c.StateDir, "holds a node already and was left as it is; want a new directory", err)
	}
	if err != nil {
		return "", stateProblem(c.StateDir, err)
	}
	return text, errors.Join(s.Close(), auditToken(c, text))
}

// initState makes the state directory and the secret for nodes to join: a token, or with an
// operator's CA the gossip keys.
func initState(c Config) (*state.State, string, error) {
	if c.TLS.CA == "" {
		s, token, err := membership.Init(c.StateDir, state.InitOptions{Name: c.Name}, initToken(c))
		return s, token.Text(), err
	}
	if _, err := checkSecret("key", c.TLS.Key); err != nil {
		return nil, "", err
	}
	op, err := trust.LoadOperator(trust.Files(c.TLS), time.Now)
	if err != nil {
		return nil, "", operatorProblem(c.TLS, err)
	}
	id := op.Store().Identity()
	if !id.Host {
		return nil, "", problem("cert", c.TLS.Cert, "is not a host's certificate: its name does not end in /host", trust.ErrNotHost)
	}
	keys := trust.NewKeyring()
	s, err := state.Init(c.StateDir, state.InitOptions{
		Cluster: id.Cluster, Node: id.Node, Name: c.Name,
		Secrets: map[state.SecretName][]byte{state.SecretKeyring: keys.Encode()},
	})
	return s, keyringText(keys), err
}

// initToken returns the limits of the first token of a cluster.
func initToken(c Config) trust.TokenOptions {
	o := c.JoinToken.options(nil)
	o.Label = "init"
	return o
}

// WriteSecret makes a new file that only this user can read, and then the line for it: a
// file that cannot be made must not cost a secret that is written nowhere.
func WriteSecret(path string, text func() (string, error)) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return problem("token-file", path, "exists already; want a new file", err)
	}
	if err != nil {
		return problem("token-file", path, "cannot be made: "+cause(err).Error(), err)
	}
	defer f.Close() // behind a Sync it has nothing to report
	var line string
	_, err = f.WriteString(strings.Repeat("\n", maxTokenFile)) // takes the room
	if err == nil {
		if line, err = text(); err != nil {
			os.Remove(path)
			return err
		}
		_, err = f.WriteAt([]byte(line+"\n"), 0)
	}
	if err == nil {
		err = f.Truncate(int64(len(line) + 1))
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		os.Remove(path) // half a token is none
		return fmt.Errorf("token file %s: %w", path, cause(err))
	}
	return nil
}

// readToken reads a join token from its file.
func readToken(path string) (trust.Token, error) {
	text, err := readBounded(path, maxTokenFile)
	if err != nil {
		return trust.Token{}, problem("token-file", path, "cannot be read: "+err.Error(), err)
	}
	if strings.TrimSpace(string(text)) == "" {
		return trust.Token{}, problem("token-file", path, "is empty; want a join token", nil)
	}
	token, err := trust.ParseToken(string(text))
	if err != nil {
		return trust.Token{}, problem("token-file", path, err.Error(), err)
	}
	return token, nil
}

// keyringPrefix begins the text of gossip keys, which take the place of a join
// token where an operator's CA issues the certificates.
const keyringPrefix = "fabk1-"

var keyringCode = base32.StdEncoding.WithPadding(base32.NoPadding)

// keyringText returns the text that readKeyring reads.
func keyringText(keys trust.Keyring) string {
	return keyringPrefix + strings.ToLower(keyringCode.EncodeToString(keys.Encode()))
}

// readKeyring reads gossip keys from the file of --token-file.
func readKeyring(path string) (trust.Keyring, error) {
	text, err := readBounded(path, maxTokenFile)
	if err != nil {
		return trust.Keyring{}, problem("token-file", path, "cannot be read: "+err.Error(), err)
	}
	const want = "want the gossip keys that `fabricd init --ca …` printed, fabk1-…"
	code, ok := strings.CutPrefix(strings.TrimSpace(string(text)), keyringPrefix)
	if !ok {
		return trust.Keyring{}, problem("token-file", path, want, nil)
	}
	encoded, err := keyringCode.DecodeString(strings.ToUpper(code))
	if err != nil {
		return trust.Keyring{}, problem("token-file", path, want, err)
	}
	keys, err := trust.DecodeKeyring(encoded)
	if err != nil {
		return trust.Keyring{}, problem("token-file", path, want+": "+err.Error(), err)
	}
	return keys, nil
}

// stateProblem describes an error of a state directory, in one line.
func stateProblem(dir string, err error) error {
	if _, known := errors.AsType[*ConfigError](err); known {
		return err
	}
	switch {
	case errors.Is(err, state.ErrNotInitialized):
		return problem("state-dir", dir, "holds no cluster; make one with `fabricd init`", err)
	case errors.Is(err, state.ErrLocked), errors.Is(err, state.ErrOtherCluster), errors.Is(err, state.ErrDamaged),
		errors.Is(err, state.ErrNewer), errors.Is(err, state.ErrRole), errors.Is(err, state.ErrInitialized), errors.Is(err, state.ErrClock),
		errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrExist):
		return problem("state-dir", dir, oneLine(err.Error()), err)
	}
	return problem("state-dir", dir, "cannot be used: "+oneLine(err.Error()), err)
}

// operatorProblem describes an error of an operator's files.
func operatorProblem(files TLSConfig, err error) error {
	return problem("ca, cert, key", files.CA+", "+files.Cert+", "+files.Key, oneLine(err.Error()), err)
}
