package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// commandLimit bounds one call of ip, nft or tc.
const commandLimit = 10 * time.Second

// command runs a program that ends by itself.
func command(ctx context.Context, name string, args ...string) error {
	_, err := output(ctx, name, args...)
	return err
}

// output runs a program that ends by itself and returns its output. Signals of the
// terminal do not reach it: undoing a fault must go on after Ctrl-C.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err == nil {
		return out.Bytes(), nil
	}
	if errors.Is(err, exec.ErrNotFound) {
		return nil, refusef("%s is not installed", name)
	}
	if said := oneLine(errs.Bytes()); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
}
