package sim

import (
	"testing"
	"time"
)

// TestACircleEndsInItsMoment lets something happen again and again in one moment: the
// clock gives up, lets no more happen, and knows when that was.
func TestACircleEndsInItsMoment(t *testing.T) {
	c := &clock{}
	var again func()
	again = func() { c.after(0, again) }
	c.after(time.Second, again)
	c.after(2*time.Second, func() { t.Error("time went on behind the circle") })
	c.until(3 * time.Second)
	if !c.stuck() || c.last != time.Second || c.now != 3*time.Second {
		t.Errorf("stuck: %v, at %v, until %v", c.stuck(), c.last, c.now)
	}
}
