package appsmoke

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestAppsSmoke runs the applications across two fabricds over each provider, breaks
// these in every way, and prints a table. `make apps` runs it.
func TestAppsSmoke(t *testing.T) {
	mode := os.Getenv(smokeEnv)
	if mode == "" {
		return
	}
	p := &printer{json: mode == "json", began: time.Now()}
	l := newLab(t, os.Getenv(exeEnv))
	servers, err := l.startServers()
	t.Cleanup(func() {
		for _, s := range servers {
			if err := s.proc.end(s.stop); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, provider := range strings.Split(cmp.Or(os.Getenv(providersEnv), "quic,tcp"), ",") {
		r := &run{lab: l, provider: provider, clients: newClients()}
		if err := r.all(t.Context(), p); err != nil {
			p.broke("over %s: %v", provider, err)
		}
	}
	for _, s := range servers {
		p.check(s.proc.running(), "%s ran from the first to the last check", s.name)
	}
	p.summary()
	if p.Broken > 0 {
		l.tails()
		t.Fail()
	}
}

// A run is everything over one provider.
type run struct {
	lab         *lab
	provider    string
	clients     []*client
	pools       []*pool
	entry, exit *meter // of the clients' gateways and of the servers'
}

// all starts the cluster, checks everything, and ends them.
func (r *run) all(ctx context.Context, p *printer) (err error) {
	p.title("over " + r.provider)
	defer r.end(p)
	if err := r.lab.cluster(r.provider); err != nil {
		return err
	}
	r.entry, r.exit = measure(r.lab.clients), measure(r.lab.servers)
	for _, c := range r.clients {
		if err := await(stepLimit, func() error { return c.serves(ctx, r.lab.clients) }); err != nil {
			return err
		}
	}
	r.connects(p)
	r.thousandClients(ctx, p)
	r.copies(ctx, p)
	if err := r.breakAll(ctx, p); err != nil {
		return err
	}
	return r.idle(p)
}

// breakAll lets every fault happen while the clients talk.
func (r *run) breakAll(ctx context.Context, p *printer) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	end, err := r.startPools()
	defer func() {
		if err := end(); err != nil {
			p.broke("%v", err)
		}
	}()
	if err != nil {
		return err
	}
	for _, c := range r.clients {
		running.Go(func() { c.run(ctx, r.lab.clients) })
	}
	for _, f := range faults {
		sides := []*side{r.lab.clients}
		if f.both {
			sides = append(sides, r.lab.servers)
		}
		for _, s := range sides {
			cells, err := r.suffer(ctx, f, s)
			p.cells(cells)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// someBytes are more than the answer to one question of client.serves.
const someBytes = 16 << 10

// flowing waits until every client runs and gets something; those that end by themselves
// have begun after a time.
func (r *run) flowing(after time.Time) error {
	before := r.entry.read()
	return await(stepLimit, func() error {
		var err error
		now := r.entry.read()
		for _, c := range r.clients {
			if err == nil && now[c.service].Bytes < before[c.service].Bytes+someBytes {
				err = fmt.Errorf("%s gets nothing: %d connections are open, %d were reset, %d were refused", c.name,
					now[c.service].Open, now[c.service].Resets, now[c.service].Refused)
			}
			if err == nil {
				err = c.running(after)
			}
		}
		return err
	})
}

// idle checks that neither forwarder has a connection when the clients have ended:
// one that stays would take a server's place for ever.
func (r *run) idle(p *printer) error {
	for _, m := range []*meter{r.entry, r.exit} {
		err := await(stepLimit, func() (err error) {
			for name, s := range m.read() {
				if err == nil && s.Open > 0 {
					err = fmt.Errorf("%d connections of %s", s.Open, name)
				}
			}
			return err
		})
		p.check(err == nil, "no connection is left without its clients: %v", err)
	}
	return nil
}

// end ends everything that all has started.
func (r *run) end(p *printer) {
	for _, m := range []*meter{r.entry, r.exit} {
		if m != nil {
			m.end()
		}
	}
	for _, s := range []*side{r.lab.clients, r.lab.servers} {
		if s.fabricd == nil {
			continue
		}
		s.fabricd.signal(syscall.SIGCONT)
		err := s.fabricd.end(syscall.SIGTERM)
		p.check(err == nil, "the %s' fabricd ends in order: %v", s.name, err)
		s.admin.Close()
	}
}

// tails shows the end of every log.
func (l *lab) tails() {
	logs, _ := filepath.Glob(filepath.Join(l.dir, "*", "*.log")) // the pattern is a good one
	for _, log := range logs {
		b, err := os.ReadFile(log)
		if err != nil {
			b = []byte(err.Error())
		}
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		fmt.Printf("--- %s\n%s\n", log, strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
}

// A printer prints and counts the results as they come.
type printer struct {
	json  bool
	began time.Time

	Held    int     `json:"held"`
	Broken  int     `json:"broken"`
	Seconds float64 `json:"seconds"`
}

// line prints v as JSON, or else text.
func (p *printer) line(v any, format string, args ...any) {
	if !p.json {
		fmt.Printf(format+"\n", args...)
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: appsmoke: " + err.Error())
	}
	fmt.Printf("%s\n", b)
}

func (p *printer) title(text string) {
	if !p.json {
		fmt.Printf("\n%s\n", text)
	}
}

// check prints whether something held.
func (p *printer) check(held bool, format string, args ...any) {
	text := strings.TrimSuffix(fmt.Sprintf(format, args...), ": <nil>")
	v := map[string]any{"check": text, "held": held}
	if held {
		p.Held++
		p.line(v, "  held    %s", text)
		return
	}
	p.Broken++
	p.line(v, "  BROKEN  %s", text)
}

func (p *printer) broke(format string, args ...any) { p.check(false, format, args...) }

// cells prints a row of the table: the result of each application under a fault.
func (p *printer) cells(cells []cell) {
	if len(cells) == 0 {
		return
	}
	for _, c := range cells {
		if p.Held++; len(c.Broken) > 0 {
			p.Held--
			p.Broken++
		}
		if p.json {
			p.line(c, "")
		}
	}
	if p.json {
		return
	}
	what := "the network " + cells[0].Fault
	if cells[0].Side != "" {
		what = "the " + cells[0].Side + "' fabricd " + cells[0].Fault
	}
	fmt.Printf("  %-46s", what)
	cause := ""
	for i, c := range cells {
		if i == len(newClients()) { // the pools
			fmt.Printf("\n  %-46s", "")
		}
		fmt.Printf("  %-34s", c.App+": "+c.text())
		cause = cmp.Or(cause, c.Cause)
	}
	fmt.Println()
	if cause != "" {
		fmt.Printf("    the fabric: %s\n", cause)
	}
	for _, c := range cells {
		for _, b := range c.Broken {
			fmt.Printf("    BROKEN  %s: %s\n", c.App, b)
		}
	}
}

func (c *cell) text() string {
	on := fmt.Sprintf("on %.2f s", c.OnMS/1000)
	if c.Error == "" {
		return on
	}
	return fmt.Sprintf("error %.2f s, %s", c.ErrorMS/1000, on)
}

func (p *printer) summary() {
	p.Seconds = time.Since(p.began).Round(100 * time.Millisecond).Seconds()
	p.line(p, "\n%d checks held, %d broken, %.1f s", p.Held, p.Broken, p.Seconds)
}
