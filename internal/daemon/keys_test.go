package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/trust"
)

// The host rotates the gossip key; a node has the new one when the request is
// answered, and is refused when it asks itself. The certificates that the host
// issues are valid for as long as it is configured.
func TestKeysRotate(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	c.CertificateValidity = 90 * time.Minute
	host, node := testHostWith(t, c)
	one := startTest(t, node("one"))
	sees(t, host, 1)
	for _, d := range []*Daemon{host, one} {
		if k, err := d.Keys(); err != nil || !slices.Equal(k.Versions, []uint32{1}) {
			t.Errorf("%s begins with %+v, %v", d.cfg.Name, k, err)
		}
	}
	k, err := one.Keys()
	if left := time.Until(k.Certificate); err != nil || left < 80*time.Minute || left > 91*time.Minute {
		t.Errorf("the node's certificate ends in %v, want 90 minutes", left)
	}

	client := NewClient(c.Local.AdminSocket)
	defer client.Close()
	if k, err := client.RotateKey(t.Context(), 20*time.Second); err != nil || !slices.Equal(k.Versions, []uint32{2}) {
		t.Fatalf("rotated: %+v, %v", k, err)
	}
	for _, d := range []*Daemon{host, one} {
		if k, err := d.Keys(); err != nil || !slices.Equal(k.Versions, []uint32{2}) {
			t.Errorf("%s has %+v, %v", d.cfg.Name, k, err)
		}
	}
	if _, err := one.RotateKey(t.Context()); err == nil || !strings.Contains(err.Error(), "not the host") {
		t.Errorf("a node rotates: %v", err)
	}
}

func TestKeyRequests(t *testing.T) {
	f := newFakeSubject()
	c, _ := serveAdmin(t, f)
	if k, err := c.Keys(t.Context()); err != nil || !slices.Equal(k.Versions, []uint32{2}) {
		t.Errorf("keys: %+v, %v", k, err)
	}
	f.rotate = func(ctx context.Context) (Keys, error) {
		<-ctx.Done()
		return Keys{}, ctx.Err()
	}
	if _, err := c.RotateKey(t.Context(), time.Second); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("a rotation that does not end: %v", err)
	}
	f.rotate = func(context.Context) (Keys, error) { return Keys{}, errors.New("this node is not the host") }
	if _, err := c.RotateKey(t.Context(), time.Second); err == nil || err.Error() != "this node is not the host" {
		t.Errorf("refusal: %v", err)
	}
	for _, timeout := range []time.Duration{0, -1, time.Hour} {
		if _, err := c.RotateKey(t.Context(), timeout); err == nil || !strings.Contains(err.Error(), "want a duration from 1s to 10m0s") {
			t.Errorf("timeout %v: %v", timeout, err)
		}
	}
}

func TestCertificateValidityIsWrittenInDays(t *testing.T) {
	for text, want := range map[string]struct {
		d     time.Duration
		again string
	}{
		"1m":    {time.Minute, "1m0s"},
		"36h":   {36 * time.Hour, "36h0m0s"},
		"48h":   {48 * time.Hour, "2d"},
		"90d":   {90 * day, "90d"},
		"3650d": {trust.CAValidity, "3650d"},
	} {
		c, err := Load("", nil, map[string]string{"certificate-validity": text})
		if err != nil || c.CertificateValidity != want.d || days(c.CertificateValidity) != want.again {
			t.Errorf("%s is %v, written %s, %v; want %v, %s", text, c.CertificateValidity, days(c.CertificateValidity), err, want.d, want.again)
		}
	}
	if c, err := Load("", nil, nil); err != nil || c.CertificateValidity != membership.CertificateValidity {
		t.Errorf("the default is %v, %v", c.CertificateValidity, err)
	}
}
