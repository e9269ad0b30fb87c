package tools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func recorded(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRecordedOutputIsRead(t *testing.T) {
	lat, err := ParseUCX(recorded(t, "ucx_am_lat.txt"))
	if want := (UCX{20000, 0.591, 48.990, 0.16, 20412}); err != nil || lat != want {
		t.Errorf("ucx_am_lat: %+v, %v; want %+v", lat, err, want)
	}
	bw, err := ParseUCX("a warning\n" + recorded(t, "ucx_tag_bw.txt"))
	if want := (UCX{300, 0.361, 1652.607, 605.10, 605}); err != nil || bw != want {
		t.Errorf("tag_bw: %+v, %v; want %+v", bw, err, want)
	}
	pp, err := ParsePingPong(recorded(t, "fi_pingpong.txt"))
	if want := (PingPong{1263.10, 0.05}); err != nil || pp != want {
		t.Errorf("fi_pingpong: %+v, %v; want %+v", pp, err, want)
	}
	rate, err := ParseIperf([]byte(recorded(t, "iperf3.json")))
	if err != nil || rate < 1e6 {
		t.Errorf("iperf3: %v, %v", rate, err)
	}
	if _, err := ParseIperf([]byte(recorded(t, "iperf3_refused.json"))); err == nil || !strings.Contains(err.Error(), "Connection refused") {
		t.Errorf("iperf3 that failed: %v, want why", err)
	}
}

func TestForeignOutputIsRefused(t *testing.T) {
	for _, text := range []string{"", "x", ucxColumns, ucxColumns + "\n1,2", ucxColumns + "\n1,2,3,4,5,6,7,NaN", ucxColumns + "\n-1,2,3,4,5,6,7,8"} {
		if got, err := ParseUCX(text); err == nil {
			t.Errorf("ucx %q: %+v", text, got)
		}
	}
	header := strings.Join(pingPongColumns, " ")
	for _, text := range []string{"", header, header + "\n1 2 3", header + "\n1 2 3 4 5 x 7 8"} {
		if got, err := ParsePingPong(text); err == nil {
			t.Errorf("fi_pingpong %q: %+v", text, got)
		}
	}
	for _, text := range []string{"", "{}", "[]", `{"end":{"sum_received":{"bits_per_second":-1}}}`} {
		if got, err := ParseIperf([]byte(text)); err == nil {
			t.Errorf("iperf3 %q: %v", text, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ucxColumns + "\n1,2,3,4,5,6,7,8\n")
	f.Add("bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec\n64 1k =1k 125k 2.53s 0.05 1263.10 0.00\n")
	f.Add(`{"end":{"sum_received":{"bits_per_second":8}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		if u, err := ParseUCX(text); err == nil && !(u.P50 >= 0 && u.MiB >= 0 && u.Rate >= 0) {
			t.Errorf("ucx: %+v", u)
		}
		if p, err := ParsePingPong(text); err == nil && !(p.Micros >= 0 && p.MB >= 0) {
			t.Errorf("fi_pingpong: %+v", p)
		}
		if rate, err := ParseIperf([]byte(text)); err == nil && !(rate > 0) {
			t.Errorf("iperf3: %v", rate)
		}
	})
}

func TestListeningSocketsAreFound(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue
   0: 0100007F:3419 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0
   1: 0100007F:341A 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0
`
	if !tableListens(table, 0x3419) || tableListens(table, 0x341A) || tableListens(table, 0x50) || tableListens("", 1) {
		t.Error("the table of sockets is read wrongly")
	}
}
