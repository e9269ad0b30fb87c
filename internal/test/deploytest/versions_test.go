package deploytest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/membership/control"
)

// TestPagesNameTheVersionsSpoken holds upgrade.md and CHANGELOG.md to the constants of the three
// protocols.
func TestPagesNameTheVersionsSpoken(t *testing.T) {
	upgrade, changes := strings.Join(strings.Fields(readFile(t, "docs/upgrade.md")), " "), readFile(t, "CHANGELOG.md")
	for _, p := range []struct{ upgrade, changes, spoken string }{
		{"Nodes speak %s of the protocol of links (wire).", "| of links, between nodes | %s |", spoken(wire.VersionMin, wire.VersionMax)},
		{"Applications and fabricd speak %s of theirs (attach)", "| of applications | %s;", spoken(proto.VersionMin, proto.VersionMax)},
		{"Members speak %s of the protocol of membership (control).", "| of membership | %s |", spoken(control.VersionMin, control.VersionMax)},
	} {
		if want := fmt.Sprintf(p.upgrade, p.spoken); !strings.Contains(upgrade, want) {
			t.Errorf("upgrade.md does not say %q", want)
		}
		_, numbers, _ := strings.Cut(p.spoken, " ")
		if want := fmt.Sprintf(p.changes, numbers); !strings.Contains(changes, want) {
			t.Errorf("CHANGELOG.md does not say %q", want)
		}
	}
}

// spoken names a range of versions.
func spoken(least, greatest uint16) string {
	if least == greatest {
		return fmt.Sprintf("version %d", least)
	}
	return fmt.Sprintf("versions %d to %d", least, greatest)
}
