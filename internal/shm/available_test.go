package shm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTightestLimit lays out cgroups as machines and containers show them.
func TestTightestLimit(t *testing.T) {
	const docker = "/docker/8ce0d50f"
	for _, test := range []struct {
		name  string
		files map[string]string // below /sys/fs/cgroup
		own   string            // /proc/self/cgroup
		room  int64             // -1: no limit
		at    string            // the file that is named
	}{
		{"v2, own namespace", map[string]string{"memory.max": "1000", "memory.current": "400"}, "0::/\n", 600, "memory.max of 1000 bytes"},
		{"v2, the machine's path in a container", map[string]string{"memory.max": "1000", "memory.current": "400"},
			"0::" + docker + "\n", 600, "memory.max of 1000 bytes"},
		{"v2, no limit", map[string]string{"a/memory.max": "max", "a/memory.current": "400"}, "0::/a\n", -1, ""},
		{"v2, a parent's limit", map[string]string{"a/b/memory.max": "max", "a/b/memory.current": "10",
			"a/memory.max": "1000", "a/memory.current": "900"}, "0::/a/b\n", 100, "a/memory.max of 1000 bytes"},
		{"v2, the tighter of two", map[string]string{"a/b/memory.max": "500", "a/b/memory.current": "450",
			"a/memory.max": "1000", "a/memory.current": "900"}, "0::/a/b\n", 50, "a/b/memory.max of 500 bytes"},
		{"v2, cache is given back", map[string]string{"memory.max": "1000", "memory.current": "900",
			"memory.stat": "anon 600\nfile 300\ninactive_file 200\n"}, "0::/\n", 300, "memory.max of 1000 bytes"},
		{"v1, a container", map[string]string{"memory/memory.limit_in_bytes": "33554432", "memory/memory.usage_in_bytes": "3554432"},
			"9:name=systemd:" + docker + "\n4:memory:" + docker + "\n0::" + docker + "\n", 30000000, "memory/memory.limit_in_bytes of 33554432 bytes"},
		{"v1, no limit", map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "1"},
			"4:cpu,memory:/\n", -1, ""},
		{"v1, over its limit", map[string]string{"memory/memory.limit_in_bytes": "10", "memory/memory.usage_in_bytes": "11"},
			"4:cpu,memory:/\n", 0, "memory/memory.limit_in_bytes of 10 bytes"},
		{"no cgroups", nil, "", -1, ""},
		{"not a cgroup file", map[string]string{"memory.max": "1", "memory.current": "0"}, "0:/\nnonsense\n", -1, ""},
		{"not a number", map[string]string{"memory.max": "lots", "memory.current": "0"}, "0::/\n", -1, ""},
		{"out of the tree", map[string]string{"memory.max": "1000", "memory.current": "1"}, "0::/../../x\n", 999, "memory.max of 1000 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range test.files {
				file := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			room, name, ok := tightest(root, test.own)
			if !ok {
				room = -1
			}
			if room != test.room || strings.TrimPrefix(name, root+"/") != test.at {
				t.Errorf("got %d below %q, want %d below %q", room, name, test.room, test.at)
			}
		})
	}
}

// TestLimitIsTheLeastOne: a process has a limit, of its group or of the machine, and
// no more than that is available.
func TestLimitIsTheLeastOne(t *testing.T) {
	limit, ok := Limit()
	total, _ := machine("MemTotal:")
	free, _, known := Available()
	if !ok || limit < 1<<20 || limit > total || known && free > limit {
		t.Errorf("limit %d, %v, of %d, with %d available", limit, ok, total, free)
	}
	root := t.TempDir()
	for name, text := range map[string]string{"a/memory.max": "3000", "a/b/memory.max": "2000", "memory.max": "max"} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if least, _ := leastLimit(root, "0::/a/b\n"); least != 2000 {
		t.Errorf("the least limit is %d, want 2000", least)
	}
	if least, ok := leastLimit(root, "0::/c\n"); ok {
		t.Errorf("a limit of %d where there is none", least)
	}
}
