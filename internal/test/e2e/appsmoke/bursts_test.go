package appsmoke

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	manyAtOnce  = 1000
	manyWithin  = 3 * time.Second
	clientsTalk = "3s"
)

// connects makes many connections to Redis at once: each is answered, and soon. Where
// all are but late, which a machine has that does other things as well, it tries again.
func (r *run) connects(p *printer) {
	var b burst
	for range 3 {
		var err error
		if b, err = r.burst(); err != nil {
			p.broke("%d connects at once: %v", manyAtOnce, err)
			return
		}
		if b.Failed > 0 || b.Took <= manyWithin {
			break
		}
	}
	text := fmt.Sprintf("%d connects at once: %d answered within %.2f s", manyAtOnce, b.Answered, b.Took.Seconds())
	if b.Failed > 0 {
		text += fmt.Sprintf(", %d failed, the first: %s%s", b.Failed, b.Cause, r.cause("redis"))
	}
	p.check(b.Failed == 0 && b.Took <= manyWithin, "%s", text)
}

func (r *run) burst() (b burst, err error) {
	cmd := r.lab.role(r.lab.clients, "burst", redisAt, fmt.Sprint(manyAtOnce))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(out, &b)
}

// thousandClients lets as many HTTP clients talk to nginx for a while: none sees an
// error.
func (r *run) thousandClients(ctx context.Context, p *printer) {
	r.entry.mark()
	out, err := r.lab.clients.inside(ctx, "wrk", "-c", fmt.Sprint(manyAtOnce), "-t", "2", "-d", clientsTalk, "--timeout", "10s",
		"http://"+nginxAt+"/small").CombinedOutput()
	if err != nil {
		p.broke("wrk: %v: %s", err, out)
		return
	}
	requests, wrong := "no requests", ""
	for line := range strings.Lines(string(out)) {
		switch line = strings.TrimSpace(line); {
		case strings.Contains(line, "requests in"):
			requests = line
		case strings.HasPrefix(line, "Socket errors"), strings.HasPrefix(line, "Non-2xx"):
			wrong += ", " + line
		}
	}
	if wrong != "" {
		wrong += r.cause("nginx")
	}
	p.check(wrong == "" && requests != "no requests", "%d HTTP clients: %s%s", manyAtOnce, requests, wrong)
}

// cause returns the fabric's cause of a service's lost connections.
func (r *run) cause(service string) string {
	text := r.entry.read()[service].Cause
	if text == "" {
		return ""
	}
	return "; the fabric: " + text
}
