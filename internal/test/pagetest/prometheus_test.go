package pagetest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

const dashboards = root + "/deploy/dashboards/"

// An expression is one of a dashboard or an alert.
type expression struct{ where, text string }

// expressions returns those of the dashboard and of the alerts.
func expressions(t *testing.T) (all []expression) {
	t.Helper()
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	read(t, "fabricd.json", func(text []byte) error { return json.Unmarshal(text, &board) })
	// What Grafana puts in: every node, and four times the interval of scrapes.
	fill := strings.NewReplacer("$__rate_interval", "4s", "$instance", ".*")
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			all = append(all, expression{"panel " + p.Title, fill.Replace(target.Expr)})
		}
	}
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	read(t, "alerts.yaml", func(text []byte) error { return yaml.Unmarshal(text, &alerts) })
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			all = append(all, expression{"alert " + r.Alert, r.Expr})
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d expressions were found", len(all))
	}
	return all
}

func read(t *testing.T, name string, parse func([]byte) error) {
	t.Helper()
	text, err := os.ReadFile(dashboards + name)
	if err == nil {
		err = parse(text)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAlertRulesAreRules(t *testing.T) {
	if lacks(t, "prometheus", "promtool") {
		return
	}
	if out, err := exec.Command("promtool", "check", "rules", dashboards+"alerts.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestPrometheusHasWhatTheDashboardsName has a Prometheus scrape a cluster, and asks it each
// expression.
func TestPrometheusHasWhatTheDashboardsName(t *testing.T) {
	if lacks(t, "prometheus", "prometheus", "promtool") {
		return
	}
	c := newCluster(t)
	one := c.node("node-1")
	c.command("ping", one.id(), "--count", "1", "--admin", c.host.admin())
	p := newPrometheus(c, c.host, one)
	c.await("both nodes to be scraped", func() error {
		if n := len(p.query("fabricd_link_round_trip_seconds")); n != 2 {
			return fmt.Errorf("%d links are known", n)
		}
		return nil
	})
	known := p.names()
	name := regexp.MustCompile(`\b(fabricd|process|go)_\w+`)
	for _, e := range expressions(t) {
		p.query(e.text)
		for _, m := range name.FindAllString(e.text, -1) {
			if !known[m] {
				t.Errorf("%s names %s, which no node has", e.where, m)
			}
		}
	}
	if err := one.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.await("an alert about the lost node", func() error {
		if len(p.query(`ALERTS{alertname="FabricdNodesLost", alertstate="firing"}`)) == 0 {
			return fmt.Errorf("of the alerts there are %v", p.query("ALERTS"))
		}
		return nil
	})
}

// A prometheus is one server.
type prometheus struct {
	t  *testing.T
	at string
}

// newPrometheus starts a server that scrapes nodes each second, and ends with the test.
func newPrometheus(c *cluster, nodes ...*node) *prometheus {
	c.t.Helper()
	rules, err := filepath.Abs(dashboards + "alerts.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	targets := make([]string, len(nodes))
	for i, n := range nodes {
		targets[i] = fmt.Sprintf("%q", n.status.HTTP)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n- job_name: fabricd\n  static_configs:\n  - targets: [%s]\n",
		rules, strings.Join(targets, ", "))
	file := filepath.Join(c.dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "check", "config", file).CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	p := &prometheus{t: c.t, at: freeAddress(c.t)}
	cmd := exec.Command("prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(c.dir, "prometheus"), "--web.listen-address="+p.at)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	c.await("Prometheus", func() error {
		got, err := http.Get("http://" + p.at + "/-/ready")
		if err != nil {
			return err
		}
		got.Body.Close()
		if got.StatusCode != http.StatusOK {
			return fmt.Errorf("it says %s", got.Status)
		}
		return nil
	})
	return p
}

// freeAddress returns an address at which nothing listens: Prometheus cannot choose one.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// ask returns the data of an answer.
func (p *prometheus) ask(path string, into any) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.at+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer got.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(got.Body).Decode(&answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("%s: %v %s", path, err, answer.Error)
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		p.t.Fatal(err)
	}
}

// query returns the series of an expression.
func (p *prometheus) query(expression string) []json.RawMessage {
	p.t.Helper()
	var data struct{ Result []json.RawMessage }
	p.ask("/api/v1/query?query="+url.QueryEscape(expression), &data)
	return data.Result
}

// names returns the metrics that there are.
func (p *prometheus) names() map[string]bool {
	p.t.Helper()
	var all []string
	p.ask("/api/v1/label/__name__/values", &all)
	names := make(map[string]bool)
	for _, n := range all {
		names[n] = true
	}
	return names
}
