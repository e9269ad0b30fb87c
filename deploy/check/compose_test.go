package check

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// load reads the compose file as compose 2 does: with its schema, its
// interpolation and its consistency checks.
func load(t *testing.T, environ ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../compose.yaml"}, cli.WithName("test"), cli.WithEnv(environ))
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestComposeTwoReadsTheFile checks that compose 2 reads the file as intended.
func TestComposeTwoReadsTheFile(t *testing.T) {
	p := load(t)
	if names := p.ServiceNames(); !slices.Equal(slices.Sorted(slices.Values(names)), []string{"host", "init", "keeper", "node1", "node2", "visitor"}) {
		t.Fatalf("services %q", names)
	}
	for name, s := range p.Services {
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.CapAdd) > 0 || s.Privileged ||
			!slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) || s.MemLimit == 0 || s.PidsLimit == 0 {
			t.Errorf("%s is not hardened: %+v", name, s)
		}
		if s.Ipc != "" || s.Pid != "" || s.ShmSize != 0 || len(s.Devices) > 0 {
			t.Errorf("%s shares a namespace or a device, or asks for /dev/shm", name)
		}
		network := ""
		if s.Build != nil && s.Build.Target == "apps" {
			network = "none"
		}
		if s.NetworkMode != network {
			t.Errorf("%s has the network %q, want %q", name, s.NetworkMode, network)
		}
		if s.Build == nil || filepath.Base(s.Build.Context) == "deploy" || s.Build.Target == "" {
			t.Errorf("%s is built of %+v", name, s.Build)
		}
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeVolume {
				t.Errorf("%s mounts %s, want volumes only", name, v.Source)
			}
			if application := s.Build.Target == "apps"; application && !v.ReadOnly {
				t.Errorf("%s could replace its node's socket: want %s read-only", name, v.Target)
			}
		}
	}
	if c := p.Services["node1"].DependsOn["init"].Condition; c != types.ServiceConditionCompletedSuccessfully {
		t.Errorf("node1 waits for init until %q", c)
	}
	if e := p.Services["node2"].Environment; *e["FABRIC_NAME"] != "node2" || *e["FABRIC_JOIN"] != "host:7700" {
		t.Errorf("the environment of node2 is %v", e)
	}
	if b := p.Services["keeper"].Build; b.Target != "apps" || *b.Args["GO_IMAGE"] != "golang:1.26" {
		t.Errorf("the keeper is built of %+v", b)
	}
}

func TestComposeTakesOtherImages(t *testing.T) {
	p := load(t, "FABRICD_IMAGE=one", "FABRICD_APPS_IMAGE=two", "GO_IMAGE=three", "FABRICD_VERSION=v4")
	if a, b := p.Services["node1"].Image, p.Services["visitor"].Image; a != "one" || b != "two" {
		t.Errorf("images %q and %q", a, b)
	}
	if args := p.Services["node1"].Build.Args; *args["GO_IMAGE"] != "three" || *args["VERSION"] != "v4" {
		t.Errorf("built of %q, version %q", *args["GO_IMAGE"], *args["VERSION"])
	}
}

// TestImagesHaveTheirVersion: in a label of each that a build leaves, in the program, and in a
// tag beside dev.
func TestImagesHaveTheirVersion(t *testing.T) {
	text := func(name string) string {
		all, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(all)
	}
	for _, stage := range strings.Split(text("Dockerfile"), "\nFROM ")[1:] {
		name, rest, _ := strings.Cut(stage, "\n")
		if !strings.Contains(rest, "ARG VERSION=unknown\n") {
			t.Errorf("the stage %q takes no version", name)
		}
		if final := strings.HasPrefix(name, "scratch "); final != strings.Contains(rest, `org.opencontainers.image.version="${VERSION}"`) {
			t.Errorf("the stage %q: want the version as a label of an image, and of nothing else", name)
		}
	}
	if !strings.Contains(text("Dockerfile"), "-X main.version=${VERSION}") {
		t.Error("the program does not get its version")
	}
	for name, want := range map[string]string{
		"Makefile":        `docker tag "$$image" "$${image%:*}:$(VERSION)"`,
		"deploy/image.sh": `--build-arg "VERSION=$version"`,
	} {
		if !strings.Contains(text(name), want) {
			t.Errorf("%s has no %s", name, want)
		}
	}
}

// TestComposeRefusesWhatItDoesNotKnow shows that the library does look.
func TestComposeRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, wrong := range []string{
		"services: {a: {image: x, cap_dropp: [ALL]}}",
		"services: {a: {image: x, volumes: ['none:/x']}}",
		"services: {a: {image: x, depends_on: [b]}}",
		"services: {a: {image: x, mem_limit: much}}",
	} {
		file := filepath.Join(t.TempDir(), "compose.yaml")
		if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		options, err := cli.NewProjectOptions([]string{file}, cli.WithName("test"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := options.LoadProject(t.Context()); err == nil {
			t.Errorf("loaded: %s", wrong)
		} else if strings.Contains(err.Error(), "no such file") {
			t.Error(err)
		}
	}
}
