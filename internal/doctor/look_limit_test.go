package doctor

import (
	"os"
	"os/exec"
	"testing"
)

// TestDescriptorLimitIsThatOfTheProcess: of a process with a limit of its own.
func TestDescriptorLimitIsThatOfTheProcess(t *testing.T) {
	other := exec.CommandContext(t.Context(), "sh", "-c", "ulimit -n 77; echo; exec cat")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // the limit is set
		t.Fatal(err)
	}
	if got := descriptorLimit(other.Process.Pid); got != 77 {
		t.Errorf("limit %d, want 77", got)
	}
	in.Close()
	if err := other.Wait(); err != nil {
		t.Error(err)
	}
	if own := descriptorLimit(os.Getpid()); own == 0 || own == 77 {
		t.Errorf("own limit %d", own)
	}
}
