package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// makeSpaces creates two namespaces and the network between them: a veth pair, or the network that
// way describes.
func (l *lab) makeSpaces(ctx context.Context, way string) error {
	l.addrs = [2]string{"10.79.0.1", "10.79.0.2"}
	for i, side := range []string{"a", "b"} {
		name := fmt.Sprintf("fb%d%s", os.Getpid(), side)
		if err := ip(ctx, "netns add "+name); err != nil {
			return err
		}
		l.spaces[i] = name
	}
	if way != "" {
		if err := l.startRelay(way); err != nil {
			return err
		}
	} else if err := ip(ctx, fmt.Sprintf("-n %s link add eth0 type veth peer name eth0 netns %s", l.spaces[0], l.spaces[1])); err != nil {
		return err
	}
	for i, space := range l.spaces {
		for _, line := range []string{"addr add " + l.addrs[i] + "/24 dev eth0", "link set eth0 up", "link set lo up"} {
			if err := ip(ctx, "-n "+space+" "+line); err != nil {
				return err
			}
		}
	}
	return nil
}

// startRelay starts the process that carries packets between the two namespaces.
func (l *lab) startRelay(way string) error {
	p, err := l.spawn("relay", l.self, relayCommand, "--way", way, "--from", l.spaces[0], "--to", l.spaces[1])
	if err != nil {
		return err
	}
	if line, err := p.line(); err != nil || line != "ready" {
		return fmt.Errorf("the relay says %q: %w", line, err)
	}
	return nil
}

func ip(ctx context.Context, line string) error {
	out, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// canMakeSpaces reports whether this process may make network namespaces.
func canMakeSpaces() bool {
	_, err := exec.LookPath("ip")
	return runtime.GOOS == "linux" && os.Geteuid() == 0 && err == nil
}
