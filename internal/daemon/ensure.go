package daemon

import (
	"cmp"
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

// Ensure makes the missing parts of a cluster: the state directory c.StateDir of its host, and the
// file of a join token, or with an operator's CA of the gossip keys. Existing files stay as they
// are, and must belong together; only a token that has ended is replaced. It may be repeated, and a
// host may be running.
func Ensure(c Config, tokenFile string) error {
	given, err := readGiven(c, tokenFile)
	there := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s, err := state.Open(c.StateDir, state.Options{})
	switch {
	case errors.Is(err, state.ErrLocked) && there:
		return nil // a host runs, for which a token was made when it started
	case errors.Is(err, state.ErrLocked):
		return problem("token-file", tokenFile, fmt.Sprintf("is missing, and a host runs on %s: `fabricd token create` makes one", c.StateDir), err)
	case errors.Is(err, state.ErrNotInitialized) && there:
		return problem("token-file", tokenFile, fmt.Sprintf("is there, and %s holds no cluster; want neither of them, or both", c.StateDir), err)
	case errors.Is(err, state.ErrNotInitialized):
		_, err = Init(c, tokenFile)
		return err
	case err != nil:
		return stateProblem(c.StateDir, err)
	}
	err = complete(c, s, tokenFile, there, given)
	return errors.Join(err, s.Close())
}

// complete makes the token file of a cluster that is there, or checks that the
// one that is there is the cluster's. given is its token, zero for keys, which do
// not say.
func complete(c Config, s *state.State, tokenFile string, there bool, given trust.Token) error {
	id := s.Identity()
	switch {
	case id.Role != state.Host:
		return problem("state-dir", c.StateDir, "was made for the role node; want the host's", state.ErrRole)
	case there && !given.Cluster.IsZero() && given.Cluster != id.Cluster:
		return problem("token-file", tokenFile, fmt.Sprintf("is of cluster %s, %s of cluster %s", given.Cluster, c.StateDir, id.Cluster), state.ErrOtherCluster)
	case there && !ended(s, given):
		return nil
	}
	text := func() (string, error) {
		text, err := joinText(c, s)
		if err != nil {
			return "", stateProblem(c.StateDir, err)
		}
		return text, auditToken(c, text)
	}
	if !there {
		return WriteSecret(tokenFile, text)
	}
	fresh := tokenFile + ".new"
	if err := WriteSecret(fresh, text); err != nil {
		return err
	}
	return os.Rename(fresh, tokenFile)
}

// ended reports whether a token of the cluster has expired, is used up or void. One
// that was revoked has not: an administrator wants no node to join with the file.
func ended(s *state.State, given trust.Token) bool {
	tokens, err := trust.DecodeTokenStore(s.Secret(state.SecretTokens))
	if err != nil {
		return false // the host reports the error when it starts
	}
	for _, r := range tokens.List() {
		if r.ID == given.ID {
			return !tokenInfo(r, time.Now()).Usable
		}
	}
	return false
}

// joinText returns the secret for nodes to join the cluster of s: a new token, or with an
// operator's CA the gossip keys.
func joinText(c Config, s *state.State) (string, error) {
	if s.Secret(state.SecretAuthority) == nil {
		keys, err := trust.DecodeKeyring(s.Secret(state.SecretKeyring))
		return keyringText(keys), err
	}
	token, err := membership.NewToken(s, initToken(c), time.Now())
	return token.Text(), err
}

// readGiven returns the token of a token file, zero for gossip keys. The error
// is fs.ErrNotExist if there is no file.
func readGiven(c Config, tokenFile string) (trust.Token, error) {
	_, err := os.Lstat(tokenFile)
	if text, rerr := readBounded(tokenFile, maxTokenFile); rerr == nil && strings.TrimSpace(string(text)) == "" { // of an init that was killed
		err = cmp.Or(os.Remove(tokenFile), fs.ErrNotExist)
	}
	if err != nil {
		return trust.Token{}, problem("token-file", tokenFile, "cannot be read: "+cause(err).Error(), err)
	}
	// Whether other users can read it is for the joining node to judge: a mount of the volume may
	// have changed the mode since this was written.
	if c.TLS.CA != "" {
		_, err := readKeyring(tokenFile)
		return trust.Token{}, err
	}
	return readToken(tokenFile)
}
