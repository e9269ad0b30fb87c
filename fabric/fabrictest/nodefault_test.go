package fabrictest

import (
	"reflect"
	"testing"
	"time"
)

// TestNodeFaultsKeepEveryField on their way to the fault plane and back.
func TestNodeFaultsKeepEveryField(t *testing.T) {
	f := NodeFault{Kind: "disk", Step: "a", For: time.Second, Within: time.Minute, Nth: 2, Times: 3, Probability: 0.5, Seed: 7,
		Offset: time.Hour, Disk: "slow", Delay: time.Millisecond, Port: 2050}
	for v, i := reflect.ValueOf(f), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the test has no %s", v.Type().Field(i).Name)
		}
	}
	if got := nodeFault(f.point()); got != f {
		t.Errorf("%+v came back as %+v", f, got)
	}
}
