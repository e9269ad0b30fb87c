package yamlbound

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTooDeep(t *testing.T) {
	for text, want := range map[string]bool{
		"":                                    false,
		"a: {b: {c: [1, 2]}}\n":               false,
		strings.Repeat("- {at: 1s}\n", 20000): false,
		strings.Repeat("[", 33):               true,
		strings.Repeat("[\n", 33):             true,
		strings.Repeat("{a: ", 33):            true,
		strings.Repeat("a: ", 80):             true,
		strings.Repeat("- ", 80):              true,
		"[" + strings.Repeat("? ", 80):        true,
		strings.Repeat("!!binary ", 80):       true,
		strings.Repeat(" ", 100) + "a: 1":     true,
	} {
		if got := TooDeep([]byte(text)); got != want {
			t.Errorf("%.40q (%d bytes): %v, want %v", text, len(text), got, want)
		}
	}
}

// Our own scenarios are not too deep.
func TestScenariosAreNotTooDeep(t *testing.T) {
	files, err := filepath.Glob("../../deploy/scenarios/*.yaml")
	if err != nil || len(files) < 40 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if TooDeep(text) {
			t.Errorf("%s is", f)
		}
	}
}

func TestNearestKey(t *testing.T) {
	keys := []string{"delay", "drop", "duplicate"}
	for key, want := range map[string]string{"dealy": "delay", "dorp": "drop", "drop": "drop", "duplicat": "duplicate", "mtu": "",
		strings.Repeat("d", 1<<20): ""} {
		if got := Nearest(key, keys); got != want {
			t.Errorf("%.20q is near %q, want %q", key, got, want)
		}
	}
}
