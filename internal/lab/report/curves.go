package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// Curves have at most maxSteps steps, and about fewSteps if their length allows it.
const (
	maxSteps = 120
	fewSteps = 80
)

// steps are the allowed lengths of a step. Applications write their received bytes at least every
// 100 ms or so: a shorter step would show that.
var steps = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 3 * time.Hour, 24 * time.Hour}

// Curves are the measurements of a run's applications, in steps of one length, by the scenario's
// own clock. All lists have an entry for each step.
type Curves struct {
	From int64 `json:"from"` // of the first step, ns; negative before the scenario's zero
	Step int64 `json:"step"` // ns
	// Messages and RMA are bytes a second: received, and of operations that succeeded.
	Messages []int64 `json:"messages"`
	RMA      []int64 `json:"rma"`
	// Latency has the calls that wait for an answer and succeeded, by their kind.
	Latency map[string][]Spread `json:"latency"`
	// Errors counts calls that failed and connections that were reset, by errno.
	Errors map[string][]int64 `json:"errors"`
}

// A Spread is how long the calls of a step took that began in it; ns.
type Spread struct {
	Count int   `json:"n"`
	P50   int64 `json:"p50"`
	Max   int64 `json:"max"`
}

// The names of latencies.
const (
	fenceWait   = "fence wait"
	waitingRMA  = "RMA with SYNC, atomics"
	connectCall = "connect"
)

// latencies are the names, in the order of pages.
var latencies = []string{waitingRMA, fenceWait, connectCall}

// A curveMaker goes through the records of a run.
type curveMaker struct {
	c       *Curves
	zero    int64
	ended   map[history.ConnEnd]string // how
	begun   map[operation]*history.Record
	samples map[string][][]int64
}

// An operation is one RMA operation of one end.
type operation struct {
	history.ConnEnd
	op uint64
}

// newCurves takes the curves of a run whose scenario began at zero and whose last record
// is at end; nil if the run has no length.
func newCurves(records []history.Record, zero, end int64) *Curves {
	if end <= 0 {
		return nil
	}
	step := int64(steps[len(steps)-1])
	for _, d := range steps {
		if end/int64(d)+2 <= fewSteps {
			step = int64(d)
			break
		}
	}
	from := -((zero + step - 1) / step) * step
	n := int(min((end-zero-from+step-1)/step, maxSteps))
	m := &curveMaker{zero: zero, ended: map[history.ConnEnd]string{}, begun: map[operation]*history.Record{}, samples: map[string][][]int64{},
		c: &Curves{From: from, Step: step, Messages: make([]int64, n), RMA: make([]int64, n), Latency: map[string][]Spread{}, Errors: map[string][]int64{}}}
	for i := range records {
		if b, ok := records[i].Body.(*history.Closed); ok {
			m.ended[b.ConnEnd] = b.How
		}
	}
	for i := range records {
		m.see(&records[i])
	}
	m.finish(end)
	return m.c
}

// at returns the step of a time of the run's clock.
func (m *curveMaker) at(t int64) int {
	return int(min(max((t-m.zero-m.c.From)/m.c.Step, 0), int64(len(m.c.Messages)-1)))
}

func (m *curveMaker) see(r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Received:
		m.c.Messages[m.at(r.At)] += b.To - b.From
	case *history.RMA:
		m.begun[operation{b.ConnEnd, b.Op}] = r
	case *history.RMADone:
		m.rma(r, b)
	case *history.Return:
		m.returned(r, b)
	case *history.Closed:
		if b.How != history.HowClose && b.How != history.HowEOF {
			m.failed(r.At, b.How)
		}
	}
}

func (m *curveMaker) rma(r *history.Record, b *history.RMADone) {
	id := operation{b.ConnEnd, b.Op}
	begun := m.begun[id]
	delete(m.begun, id)
	switch {
	case b.Status != "":
		m.failedAt(r.At, b.ConnEnd, b.Status)
	case begun != nil:
		o := begun.Body.(*history.RMA)
		m.c.RMA[m.at(r.At)] += o.Len
		if o.Sync || o.Name == "atomic" {
			m.took(waitingRMA, begun.At, r.At)
		}
	}
}

func (m *curveMaker) returned(r *history.Record, b *history.Return) {
	switch {
	case b.Status != "":
		m.failedAt(r.At, history.ConnEnd{Conn: b.Conn, Side: b.Side}, b.Status)
	case b.Name == "connect":
		m.took(connectCall, b.Began, r.At)
	case b.Name == "fence_wait":
		m.took(fenceWait, b.Began, r.At)
	}
}

// failedAt counts a call that failed at an end of a connection, unless that is how an end
// learns that the other has closed, or the application gave the call up.
func (m *curveMaker) failedAt(at int64, end history.ConnEnd, status string) {
	how, closed := m.ended[end]
	orderly := closed && (how == history.HowEOF || how == history.HowClose)
	if !orderly && !slices.Contains(givenUp, status) {
		m.failed(at, status)
	}
}

// givenUp are the errnos of calls that the application itself has ended.
var givenUp = []string{"ECANCELED", "EINTR", "EBADF"}

func (m *curveMaker) failed(at int64, status string) {
	if m.c.Errors[status] == nil {
		m.c.Errors[status] = make([]int64, len(m.c.Messages))
	}
	m.c.Errors[status][m.at(at)]++
}

func (m *curveMaker) took(name string, from, to int64) {
	if m.samples[name] == nil {
		m.samples[name] = make([][]int64, len(m.c.Messages))
	}
	i := m.at(from)
	m.samples[name][i] = append(m.samples[name][i], max(to-from, 0))
}

// finish makes rates of bytes, and spreads of samples. The last step may be shorter.
func (m *curveMaker) finish(end int64) {
	last := len(m.c.Messages) - 1
	for i := range m.c.Messages {
		length := m.c.Step
		if i == last {
			length = max(end-m.zero-m.c.From-int64(i)*m.c.Step, m.c.Step/2)
		}
		rate := func(bytes int64) int64 { return int64(float64(bytes) / (float64(length) / 1e9)) }
		m.c.Messages[i], m.c.RMA[i] = rate(m.c.Messages[i]), rate(m.c.RMA[i])
	}
	for name, all := range m.samples {
		spreads := make([]Spread, len(all))
		for i, s := range all {
			if slices.Sort(s); len(s) > 0 {
				spreads[i] = Spread{len(s), s[len(s)/2], s[len(s)-1]}
			}
		}
		m.c.Latency[name] = spreads
	}
}

// check reports an error in curves that come from a file.
func (c *Curves) check() error {
	n := len(c.Messages)
	ok := c.Step > 0 && n > 0 && n <= maxSteps && len(c.RMA) == n && max(c.From, -c.From) < 1<<60 && c.Step < 1<<50
	for name, all := range c.Latency {
		ok = ok && slices.Contains(latencies, name) && len(all) == n
	}
	for _, all := range c.Errors {
		ok = ok && len(all) == n
	}
	if !ok || len(c.Errors) > maxStatuses {
		return fmt.Errorf("curves: want 1 to %d steps of a length above 0, each list with as many", maxSteps)
	}
	return nil
}

// maxStatuses bounds the errnos of curves.
const maxStatuses = 200

// span returns the times of the begin and the end of the curves.
func (c *Curves) span() (from, to int64) {
	return c.From, c.From + c.Step*int64(len(c.Messages))
}

// statuses returns the errnos of curves, the most frequent first.
func (c *Curves) statuses() []string {
	return slices.SortedFunc(maps.Keys(c.Errors), func(a, b string) int {
		return cmp.Or(cmp.Compare(total(c.Errors[b]), total(c.Errors[a])), cmp.Compare(a, b))
	})
}

func total(all []int64) (sum int64) {
	for _, v := range all {
		sum += v
	}
	return sum
}
