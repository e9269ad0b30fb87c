package daemon

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestTheLogLevelChangesAndGoesBack, and a newer change counts more than an older one's
// end.
func TestTheLogLevelChangesAndGoesBack(t *testing.T) {
	defer zerolog.SetGlobalLevel(zerolog.GlobalLevel())
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l, log := NewLogLevel(zerolog.New(&out).Level(zerolog.InfoLevel))
		logged := func(want string) {
			t.Helper()
			out.Reset()
			log.Debug().Msg("d")
			log.Info().Msg("i")
			log.Warn().Msg("w")
			var got string
			for _, c := range "diw" {
				if strings.Contains(out.String(), `"message":"`+string(c)) {
					got += string(c)
				}
			}
			if got != want {
				t.Errorf("it logs %q, want %q; %+v", got, want, l.State())
			}
		}
		logged("iw")
		l.Set(zerolog.DebugLevel, 5*time.Minute)
		l.Set(zerolog.DebugLevel, 5*time.Minute) // the same again
		logged("diw")
		if st := l.State(); st.Level != "debug" || st.Configured != "info" || !st.Until.Equal(time.Now().Add(5*time.Minute)) {
			t.Errorf("state %+v", st)
		}
		time.Sleep(5*time.Minute + time.Second)
		logged("iw")
		l.Set(zerolog.DebugLevel, time.Minute)
		time.Sleep(30 * time.Second)
		l.Set(zerolog.WarnLevel, 0)
		time.Sleep(time.Hour)
		logged("w")
		if st := l.State(); st.Level != "warn" || !st.Until.IsZero() {
			t.Errorf("state %+v", st)
		}
	})
}

// TestLogLevelByTheAdminSocket: a request is checked, and an embedded node refuses.
func TestLogLevelByTheAdminSocket(t *testing.T) {
	defer zerolog.SetGlobalLevel(zerolog.GlobalLevel())
	c := testConfig(t, RoleHost, "host")
	if _, err := Init(c, c.StateDir+".token"); err != nil {
		t.Fatal(err)
	}
	d := startTest(t, c)
	client := NewClient(c.Local.AdminSocket)
	defer client.Close()
	if _, err := client.LogState(t.Context()); err == nil || !strings.Contains(err.Error(), "embedded") {
		t.Errorf("without a level of its own: %v", err)
	}
	d.opts.LogLevel, _ = NewLogLevel(zerolog.Nop().Level(zerolog.InfoLevel))
	for _, bad := range []LogRequest{{}, {Level: "loud"}, {Level: "disabled"}, {Level: "panic"}, {"debug", "1"}, {"debug", "25h"}, {"debug", "-1s"}} {
		if st, err := client.SetLogLevel(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%+v: %+v, %v", bad, st, err)
		}
	}
	if st, err := client.SetLogLevel(t.Context(), LogRequest{"debug", "1h"}); err != nil || st.Level != "debug" || st.Until.IsZero() {
		t.Errorf("%+v, %v", st, err)
	}
	if st, err := client.SetLogLevel(t.Context(), LogRequest{"info", "1h"}); err != nil || st.Level != "info" || !st.Until.IsZero() {
		t.Errorf("back by hand: %+v, %v", st, err)
	}
}
