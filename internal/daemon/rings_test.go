package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
)

func TestSizesAreWrittenAndRead(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "4096": 4096, "4KiB": 4096, "256KiB": 256 << 10, "64MiB": 64 << 20, "2047MiB": 2047 << 20, "3GiB": 3 << 30, "1TiB": 1 << 40} {
		if got, ok := parseSize(text, 1<<40); got != want || !ok {
			t.Errorf("%s is read as %d, %v", text, got, ok)
		}
		if again, ok := parseSize(sizeText(want), 1<<40); again != want || !ok {
			t.Errorf("%d is written as %s, which is read as %d", want, sizeText(want), again)
		}
	}
	for _, text := range []string{"", "KiB", "-1", "+1", "1.5MiB", "1kib", "1K", "2049MiB", "2098177KiB", "3GiB", "16777216TiB", "2148532225", "18446744073709551616", "0x10", " 1"} {
		if n, ok := parseSize(text, 2048<<20); ok {
			t.Errorf("%q is read as %d", text, n)
		}
	}
}

// The two applications of a node have what it was told.
func TestShmPathsAreAsConfigured(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	c.Local.Rings = ring.Params{Slots: 64, Data: 64 << 10, Release: 50}
	if _, err := Init(c, ""); err != nil {
		t.Fatal(err)
	}
	d := startTest(t, c)
	got := d.Status().Rings
	if want := (RingStatus{Slots: 64, Data: 64 << 10, Release: 50, HugePages: "off", ShmPath: got.ShmPath}); got != want || got.ShmPath < 2*(64<<10) {
		t.Errorf("status says %+v, want %+v", got, want)
	}
}

// Huge pages that are required and cannot be end the start, ones that are to be
// tried are reported.
func TestHugePagesThatCannotBeAreSaidAtTheStart(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	if _, err := Init(c, ""); err != nil {
		t.Fatal(err)
	}
	if err := server.CheckHugePages(c.Local.Rings); !errors.Is(err, server.ErrSmallRings) {
		t.Logf("the reason is another one here: %v", err)
	}
	c.Local.HugePages = shm.HugeRequire
	startFails(t, c, `ring-huge-pages: "require": `)
	c.Local.HugePages = shm.HugeTry
	d := startTest(t, c)
	if got := d.Status().Rings; got.HugePages != "try" || got.Small == "" {
		t.Errorf("status says %+v, want the reason for small pages", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	s, err := client.Dial(ctx, c.Local.Socket)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// Every value that a ring setting names as allowed is.
func TestRingSettingsAllowWhatTheyName(t *testing.T) {
	for key, values := range map[string][]string{
		"ring-slots":      {"4", "65536"},
		"ring-data":       {"4KiB", "4096", "64MiB", "67108864"},
		"ring-release":    {"0", "90"},
		"ring-huge-pages": {"off", "try", "require"},
	} {
		for _, value := range values {
			if _, err := Load("", []string{"FABRIC_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_")) + "=" + value}, nil); err != nil {
				t.Errorf("%s=%s: %v", key, value, err)
			}
		}
	}
}

// docs/rings.md says what the settings are.
func TestPageOfRingsIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/rings.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range ringSettings() {
		want := fmt.Sprintf("| `%s` | %s | ", s.Key, s.Value(Default()))
		_, row, found := strings.Cut(string(page), want)
		row, _, _ = strings.Cut(row, "|")
		for _, number := range regexp.MustCompile(`\d+\w*`).FindAllString(strings.SplitN(s.Allowed, ";", 2)[0], -1) {
			found = found && strings.Contains(row, number)
		}
		if !found {
			t.Errorf("docs/rings.md has no row %q with %s", want, s.Allowed)
		}
	}
	if want := fmt.Sprintf("%d KiB by\ndefault", server.ShmPathSize(ring.Default)>>10); !strings.Contains(string(page), want) {
		t.Errorf("docs/rings.md does not say that a shared-memory path takes %q", want)
	}
}
