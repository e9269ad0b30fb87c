package membership

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

func TestBadTokensAreRefusedWithTheReasonOnBothSides(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		h := w.host()
		once := must(h.a.CreateToken(trust.TokenOptions{MaxUses: 1}))
		short := must(h.a.CreateToken(trust.TokenOptions{TTL: time.Minute}))
		revoked := must(h.a.CreateToken(trust.TokenOptions{}))
		if ok, err := h.a.RevokeToken(revoked.ID); !ok || err != nil {
			t.Errorf("RevokeToken: %v, %v", ok, err)
		}
		forged := must(trust.NewTokenStore().Create(w.token.Cluster, w.token.Pin, trust.TokenOptions{}, time.Now()))
		forged.ID = w.token.ID
		pin := w.token
		pin.Pin[0] ^= 1
		w.token = once
		w.join(2)
		time.Sleep(2 * time.Minute)
		for i, c := range []struct {
			name   string
			token  trust.Token
			want   string
			atHost bool // the host logs it too
		}{
			{"used up", once, "token used up", true},
			{"expired", short, "token expired", true},
			{"revoked", revoked, "unknown token", true},
			{"forged", forged, "wrong proof of the token's secret", true},
			{"wrong pin", pin, "not the one that the token names", true},
		} {
			st := must(state.Prepare(filepath.Join(w.dir, c.name), c.name, state.Options{}))
			err := Join(t.Context(), w.joinConfig(10+i, st, c.token))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want it to say %q", c.name, err, c.want)
			}
			if st.Joined() {
				t.Errorf("%s: the node belongs to a cluster", c.name)
			}
			time.Sleep(100 * time.Millisecond)
			logged := c.want
			if c.name == "wrong pin" {
				logged = "remote error: tls" // the joiner hangs up during the handshake
			}
			if log := h.logged(); !strings.Contains(log, logged) {
				t.Errorf("%s: the host's log does not say %q:\n%s", c.name, logged, log)
			}
			st.Close()
		}
	})
}

func TestTokensOutliveTheHostsRestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		h := w.host()
		w.token = must(h.a.CreateToken(trust.TokenOptions{Label: "second", MaxUses: 1}))
		w.kill(h)
		h = w.again(1)
		w.join(2)
		w.within(5*time.Second, "it joined", func() bool { return mesh(w.all) })
		tokens := h.a.Tokens()
		ours := slices.IndexFunc(tokens, func(r trust.TokenRecord) bool { return r.Label == "second" })
		if len(tokens) != 2 || ours < 0 || tokens[ours].Uses != 1 {
			t.Errorf("tokens %+v, want two, the second one used once", tokens)
		}
		if _, err := w.node(2).a.CreateToken(trust.TokenOptions{}); err == nil {
			t.Error("a plain node made a token")
		}
	})
}

func TestJoinWaitsForTheHostAndSaysSo(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.kill(w.host())
		st := must(state.Prepare(filepath.Join(w.dir, "2"), "n2", state.Options{}))
		defer st.Close()
		var statuses []string
		c := w.joinConfig(2, st, w.token)
		c.Status = func(s string) { statuses = append(statuses, s) }
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := Join(ctx, c)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("error %v, want the deadline and what was met", err)
		}
		if len(statuses) < 3 || !strings.HasPrefix(statuses[0], "waiting for the host: join at 10.0.0.1:7946") {
			t.Errorf("statuses %q, want some that it waits", statuses)
		}
		up := make(chan struct{})
		go func() {
			defer close(up)
			time.Sleep(3 * time.Second)
			w.again(1)
		}()
		if err := Join(t.Context(), c); err != nil {
			t.Errorf("Join while the host comes up: %v", err)
		}
		<-up
		if err := Join(t.Context(), c); err != nil {
			t.Errorf("Join of a node that has joined: %v", err)
		}
		other := w.token
		other.Cluster[0] ^= 1
		c.Token = other
		if err := Join(t.Context(), c); !errors.Is(err, state.ErrOtherCluster) {
			t.Errorf("Join of another cluster: %v, want ErrOtherCluster", err)
		}
	})
}

// TestATokenGivesNobodysIdentity: a token gives a new identity and never that of
// another node, whether that lives or not; the same key gets the same one again.
func TestATokenGivesNobodysIdentity(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		victim := w.node(3)
		node := victim.st.Identity().Node
		ask := func(name string, request []byte) (control.JoinGrant, error) {
			return control.Ask(t.Context(), w.dial(9), dataAddr(1), w.token, time.Now, control.JoinAsk{Name: name, Request: request})
		}
		request, key, err := trust.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		refused := func(when, name string) {
			t.Helper()
			if g, err := ask(name, request); err == nil || !strings.Contains(err.Error(), "name") {
				t.Errorf("%s: %+v, %v, want a refusal for the name", when, g.Node, err)
			}
		}
		refused("while the node lives", "n3")
		refused("the host's name", "n1")
		refused("no name", "\x1b[2J")
		w.kill(victim)
		time.Sleep(20 * time.Minute) // its quarantine is over
		refused("when it is gone", "n3")
		g := must(ask("mallory", request))
		if g.Node == node || g.Node.IsZero() {
			t.Errorf("the host has chosen %s for a new key, that of n3 is %s", g.Node, node)
		}
		time.Sleep(time.Second)
		if again := must(ask("another", must(trust.RequestFor(key)))); again.Node != g.Node {
			t.Errorf("the same key got %s and then %s", g.Node, again.Node)
		}
		if got := w.node(1).a.Tokens()[0].Uses; got != 3 {
			t.Errorf("the token counts %d uses, want 3: two nodes and mallory", got)
		}
		must(w.node(1).a.AllowNode(t.Context(), "n3", true))
		other := must(trust.RequestFor(must(trust.NewKey())))
		if g := must(ask("n3", other)); g.Node != node {
			t.Errorf("with an operator's leave a new key got %s, want %s", g.Node, node)
		}
		if g, err := ask("n3", must(trust.RequestFor(must(trust.NewKey())))); err == nil {
			t.Errorf("a third key got %s too", g.Node)
		}
	})
}

func TestImpostorIsRefusedAndHarmsNobody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		began := time.Now()
		mallory, victim := w.node(2), w.node(3)
		for name, c := range map[string]struct {
			end  control.End
			want string
		}{
			"another UUID": {control.End{UUID: victim.st.Identity().Node, Epoch: 1}, "its certificate is for"},
			"host role":    {control.End{UUID: mallory.st.Identity().Node, Epoch: 1, Host: true}, "claims the host role"},
		} {
			d := control.Dialer{Store: must(LoadTrust(mallory.st, time.Now)), Dial: w.dial(2), Self: func() (control.End, []byte) { return c.end, nil }}
			_, err := d.Session(t.Context(), dataAddr(1))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want it to say %q", name, err, c.want)
			}
			time.Sleep(time.Second)
			if !strings.Contains(w.node(1).logged(), c.want) {
				t.Errorf("%s: the host's log does not say %q", name, c.want)
			}
		}
		for _, n := range w.all {
			if got := words(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: events %v, want none", n.i, got)
			}
		}
	})
}

// secondHost makes the state of another host of the same cluster.
func (w *world) secondHost(i int) *state.State {
	st := w.node(1).st
	ca := must(trust.LoadCA(st.Secret(state.SecretAuthority)))
	node := addr.UUID{0xFE, byte(i)}
	creds := must(trust.IssueCredentials(ca, trust.Identity{Cluster: ca.Cluster(), Node: node, Host: true}, time.Now(), time.Hour))
	return must(state.Init(filepath.Join(w.dir, fmt.Sprint(i)), state.InitOptions{
		Cluster: ca.Cluster(), Node: node, Name: "second",
		Secrets: map[state.SecretName][]byte{
			state.SecretAuthority:   st.Secret(state.SecretAuthority),
			state.SecretCredentials: must(creds.Encode()),
			state.SecretKeyring:     st.Secret(state.SecretKeyring),
			state.SecretTokens:      trust.NewTokenStore().Encode(),
		}}))
}

func TestSecondHostRefusesToStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(2)
		n := &node{w: w, i: 9, st: w.secondHost(9)}
		defer n.st.Close()
		a, err := Start(t.Context(), w.config(n))
		if err == nil {
			a.Close()
			t.Fatal("a second host started")
		}
		uuid := w.node(1).st.Identity().Node.String()
		if !strings.Contains(err.Error(), "node 0 is held by host "+uuid+" at "+dataAddr(1)) {
			t.Errorf("error %v, want it to name the holder of node 0", err)
		}
	})
}

func TestOfTwoHostsOneStaysAfterASplit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		w.net.Partition([]string{ip(1), ip(2), ip(3)}, []string{ip(9)})
		second := w.start(9, w.secondHost(9))
		time.Sleep(10 * time.Second)
		began := time.Now()
		w.net.Heal()
		select {
		case <-second.a.Done():
		case <-time.After(10 * time.Second):
			t.Error("both hosts live 10s after the heal")
		}
		if err := second.a.Err(); err == nil || !strings.Contains(err.Error(), "steps down") {
			t.Errorf("the second host ended with %v, want that it steps down", err)
		}
		w.all = w.all[:3]
		time.Sleep(10 * time.Second)
		if !mesh(w.all) {
			t.Error("the first host's cluster is not whole")
		}
		for _, n := range w.all {
			if got := removals(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: removals %v, want none", n.i, got)
			}
		}
	})
}

func TestClonedStateDirectoryIsRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		began := time.Now()
		synctest.Wait() // no goroutine writes while we copy
		clone := filepath.Join(w.dir, "clone")
		if err := os.CopyFS(clone, os.DirFS(filepath.Join(w.dir, "3"))); err != nil {
			t.Fatal(err)
		}
		n := w.start(9, must(state.Open(clone, state.Options{})))
		select {
		case <-n.a.Done():
		case <-time.After(10 * time.Second):
			t.Error("the clone lives after 10s")
		}
		if err := n.a.Err(); err == nil || !strings.Contains(err.Error(), "duplicate") || !strings.Contains(err.Error(), dataAddr(3)) {
			t.Errorf("the clone ended with %v, want duplicate and where the living one is", err)
		}
		w.all = w.all[:3]
		for _, n := range w.all {
			if got := removals(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: removals %v, want none", n.i, got)
			}
		}
	})
}

func TestStartRefusesAStateThatDoesNotFit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		h := w.host()
		n := &node{w: w, i: 5, st: must(state.Prepare(filepath.Join(w.dir, "5"), "n5", state.Options{}))}
		defer n.st.Close()
		c := Config{State: n.st, Trust: must(LoadTrust(h.st, time.Now)), Listener: must(w.net.Listen(dataAddr(5))), Log: zerolog.Nop()}
		if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "belongs to no cluster") {
			t.Errorf("a node that has not joined: %v", err)
		}
		if err := Join(t.Context(), w.joinConfig(5, n.st, w.token)); err != nil {
			t.Fatal(err)
		}
		c.Listener = must(w.net.Listen(dataAddr(5)))
		if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "the certificate is for") {
			t.Errorf("another's certificate: %v", err)
		}
		if _, err := w.net.Listen(dataAddr(5)); err != nil {
			t.Errorf("a failed Start keeps its listener: %v", err)
		}
		c = w.config(&node{w: w, i: 6, st: n.st})
		c.CertificateValidity = time.Second
		if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "want 1m0s to 87600h0m0s") {
			t.Errorf("certificates of a second: %v", err)
		}
		c = w.config(&node{w: w, i: 6, st: n.st})
		c.Detection = "hasty"
		if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "want fast, normal or calm") {
			t.Errorf("an unknown profile: %v", err)
		}
	})
}

// TestAJoinAtAMemberNamesTheMistake, and goes on: another address may be the host's.
func TestAJoinAtAMemberNamesTheMistake(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(2)
		st := must(state.Prepare(filepath.Join(w.dir, "3"), "n3", state.Options{}))
		defer st.Close()
		c := w.joinConfig(3, st, w.token)
		c.Addresses = []string{dataAddr(2)}
		var said string
		c.Status = func(s string) { said = s }
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := Join(ctx, c)
		if want := "this is a member, not the host; join wants the host's address"; !errors.Is(err, trust.ErrNotHost) || !strings.Contains(said, want) {
			t.Errorf("%q, %v, want %q", said, err, want)
		}
	})
}
