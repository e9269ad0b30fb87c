package archtest

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// banned are words of earlier editions that a network engineer does not know, and turns
// that hide which goroutine, caller or node does something. They stay out of identifiers,
// file names, logs, help and pages.
var banned = regexp.MustCompile(`\b(helm|heir|guest|looker|lookout|glance|company|sheaf|porch|chore|desk|deaf|acquaintance|janitor|whoever|` +
	`rumour|hearsay|sighting|zoo|roster|broom|loan|doorish|pulse|lane|debt|pain|deed|goodbye|` +
	`(?:gives?|gave|giving) way|tells? each other|` +
	`who looks|who waits|by who|of who|what is there to)s?\b`)

// onWire are names that builds of other versions say, too: they cannot change.
var onWire = regexp.MustCompile(`EXPORTER-fabricd-deaf|lossReportPurpose = "deaf"`)

// camel finds where a word of an identifier ends.
var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// bannedIn returns the first banned word of a text, of its identifiers too.
func bannedIn(text string) string {
	text = camel.ReplaceAllString(onWire.ReplaceAllString(text, ""), "$1 $2")
	return banned.FindString(strings.ToLower(strings.ReplaceAll(text, "_", " ")))
}

func TestWordsAreThoseOfTheField(t *testing.T) {
	root := os.DirFS("../../..")
	read := 0
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name != "." && strings.HasPrefix(base, ".") || base == "out" || base == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		if word := bannedIn(base); word != "" {
			t.Errorf("%s: the file's name says %q", name, word)
		}
		switch path.Ext(base) {
		case ".go", ".md", ".yaml", ".html", ".js", ".sh", ".service", "": // "": Makefile and its like
		default:
			return nil
		}
		if name == "internal/test/archtest/words_test.go" {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		read++
		for i, line := range strings.Split(string(text), "\n") {
			if word := bannedIn(line); word != "" {
				t.Errorf("%s:%d says %q", name, i+1, word)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 100 {
		t.Fatalf("read %d files: the walk does not see the tree", read)
	}
}

func TestTheListOfWordsBites(t *testing.T) {
	for text, want := range map[string]string{
		"func (c *conn) takeHelm() {}":           "helm",
		"type deafReport struct{}":               "deaf",
		"// It wakes who waits for it.":          "who waits",
		"the chores of a kick":                   "chores",
		`const lossReportPurpose = "deaf"`:       "",
		"their theirs anchor accompany neckline": "",
		"packet_deaf":                            "deaf",
		"func (g *gossip) spreadRumours() {}":    "rumours",
		"type zooDescriptor struct{}":            "zoo",
		"the first host gave way":                "gave way",
		"paint, alone, planes and zoom":          "",
	} {
		if got := bannedIn(text); got != want {
			t.Errorf("%q: found %q, want %q", text, got, want)
		}
	}
}
