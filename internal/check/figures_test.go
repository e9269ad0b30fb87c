package check_test

import (
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/check"
	"github.com/fabricd/fabricd/internal/history"
	"github.com/fabricd/fabricd/internal/scenario"
)

// TestTimeToErrorIsOfWhatAFaultBreaks has calls end with a reset after a cut
// between slots 1 and 2: one that the cut has caught, one on a connection that
// was made when the cut had begun, and one that its peer has closed.
func TestTimeToErrorIsOfWhatAFaultBreaks(t *testing.T) {
	for _, tt := range []struct {
		name         string
		late, closed bool
		want         int
	}{
		{"caught by the cut", false, false, 1},
		{"made behind it", true, false, 0},
		{"closed by the peer", false, true, 0},
	} {
		m := newModel(1, 4)
		var c *modelConn
		if !tt.late {
			c = m.connect(m.nodes[1], m.nodes[2])
		}
		m.now = max(m.now, sec)
		m.put(history.Lab, &history.Fault{ID: 1, What: "link cut", Ways: []history.Way{{From: []int{1}, To: []int{2}}}, Since: m.now, Harm: history.HarmReset, Cut: true})
		m.now += 500 * ms
		if tt.late {
			m.put(history.Lab, &history.FaultEnd{ID: 1, Fired: 1})
			c = m.connect(m.nodes[1], m.nodes[2])
		}
		began := m.now
		m.now += 4 * sec
		if tt.closed {
			m.put(m.app(c.server), &history.Closed{ConnEnd: c.end(history.Server), How: history.HowClose})
		}
		m.call++
		m.put(m.app(c.client), &history.Return{Status: "ECONNRESET",
			Call: history.Call{ID: m.call, Name: "recv", Began: began, Conn: c.nonce, Side: history.Client, Peer: addr.Life{Node: 2, Generation: 1}, Idle: true}})
		s := modelScenario(4, "  - removals: {max: 0}\n")
		s.Figures = []scenario.FigureName{scenario.TimeToError}
		r := check.Run(m.records, s)
		if got := r.Figures[0]; got.Count != tt.want || tt.want == 1 && got.Max < 4*sec {
			t.Errorf("%s: %+v, want %d samples", tt.name, got, tt.want)
		}
	}
}
