package chaos

import (
	"context"
	"errors"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/report"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// An Outcome is one run and the verdict on it.
type Outcome struct {
	Schedule *scenario.Schedule
	Lab      scenario.Lab
	Records  []history.Record
	Result   *check.Result // nil if there is no history to judge
	// Err is why the run is not to be judged: the lab has failed, was interrupted,
	// or stood still for too long ([check.Result.Doubt]). It is not about fabricd.
	Err  error
	Took time.Duration
	// Logs are the ends of the output of a real lab's processes, by file.
	Logs map[string][]byte
}

// Verdict returns the word on the outcome.
func (o *Outcome) Verdict() report.Verdict { return reported(o).Verdict() }

// Problems returns one line for everything that is wrong, the harness's own
// failure first.
func (o *Outcome) Problems() []string {
	var all []string
	if o.Err != nil {
		all = append(all, "harness: "+oneLine([]byte(o.Err.Error())))
	}
	if o.Result != nil {
		all = append(all, o.Result.Problems()...)
	}
	return all
}

// Once runs a schedule in a lab and judges it.
func Once(ctx context.Context, l *Lab, s *scenario.Schedule, opts *Options) *Outcome {
	began := time.Now()
	s = opts.eased(s, l.Kind())
	out := &Outcome{Schedule: s, Lab: l.Kind()}
	o := *opts
	o.logs = make(map[string][]byte)
	out.Records, out.Err = l.Run(ctx, out.Schedule, &o)
	out.Logs = o.logs
	if len(out.Records) > 0 {
		out.judge(s.Scenario)
	}
	out.Took = time.Since(began)
	return out
}

// judge judges the records of a run of s.
func (o *Outcome) judge(s *scenario.Scenario) {
	o.Result = check.Run(o.Records, s)
	if o.Err == nil {
		o.Err = o.Result.Doubt()
	}
}

// Refused reports whether err means that nothing was begun, because of the request or
// the place.
func Refused(err error) bool {
	_, ok := errors.AsType[*Refusal](err)
	return ok
}
