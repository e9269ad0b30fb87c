package deploytest

import (
	"archive/tar"
	"debug/buildinfo"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxImage bounds each image, in bytes.
const maxImage = 25_000_000

// An imageInfo is what is looked at of an image.
type imageInfo struct {
	Size         int64
	Os           string
	Architecture string
	Config       struct {
		User         string
		Env          []string
		Entrypoint   []string
		Cmd          []string
		Healthcheck  struct{ Test []string }
		Labels       map[string]string
		ExposedPorts map[string]any
		Volumes      map[string]any
		StopSignal   string
	}
}

func TestImages(t *testing.T) {
	if withoutDocker(t) {
		return
	}
	made := built(t)
	fabricd, apps := inspect[imageInfo](t, made.fabricd), inspect[imageInfo](t, made.apps)
	for name, image := range map[string]imageInfo{"fabricd": fabricd, "apps": apps} {
		t.Logf("%s: %.1f MB", name, float64(image.Size)/1e6)
		if image.Size > maxImage {
			t.Errorf("%s has %d bytes, want %d at most", name, image.Size, maxImage)
		}
		if user, _, _ := strings.Cut(image.Config.User, ":"); user == "" || user == "0" || user == "root" {
			t.Errorf("%s runs as %q, want a user other than root", name, image.Config.User)
		}
		for _, label := range []string{"title", "description", "source", "licenses", "version"} {
			if image.Config.Labels["org.opencontainers.image."+label] == "" {
				t.Errorf("%s has no label for its %s", name, label)
			}
		}
	}
	c := fabricd.Config
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/fabricd"}) || !slices.Equal(c.Cmd, []string{"run"}) ||
		!slices.Equal(c.Healthcheck.Test, []string{"CMD", "/fabricd", "health"}) || c.StopSignal != "SIGTERM" {
		t.Errorf("fabricd's configuration is %+v", c)
	}
	for _, port := range []string{"7700/tcp", "7700/udp", "7701/tcp", "7701/udp"} {
		if _, ok := c.ExposedPorts[port]; !ok {
			t.Errorf("fabricd's image does not expose port %s", port)
		}
	}
}

// TestImageHoldsNothingElse lists the files of the images: a static binary
// each, and nothing that could need an update of its own.
func TestImageHoldsNothingElse(t *testing.T) {
	if withoutDocker(t) {
		return
	}
	made := built(t)
	for image, want := range map[string][]string{
		made.fabricd: {"LICENSE", "fabricd", "run/fabricd/", "run/join/", "var/lib/fabricd/"},
		made.apps:    {"LICENSE", "keeper", "visitor"},
	} {
		files := export(t, image)
		var names []string
		for name, h := range files {
			parent := slices.ContainsFunc(want, func(w string) bool { return h.Typeflag == tar.TypeDir && strings.HasPrefix(w, name) && w != name })
			if !parent && !dockersOwn(name) {
				names = append(names, name)
			}
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("%s holds %q, want %q", image, names, want)
		}
		for _, name := range want {
			h := files[name]
			switch {
			case h == nil:
			case h.Typeflag == tar.TypeDir && (h.Uid != 65532 || h.Gid != 65532 || h.Mode&0o007 != 0):
				t.Errorf("%s: mode %o of %d:%d, want nothing for others, of 65532:65532", name, h.Mode, h.Uid, h.Gid)
			case h.Typeflag == tar.TypeReg && (h.Uid != 0 || h.Mode&0o022 != 0):
				t.Errorf("%s: mode %o of user %d, want root's, written by nobody else", name, h.Mode, h.Uid)
			}
		}
	}
}

// dockersOwn reports whether Docker puts a file into every container.
func dockersOwn(name string) bool {
	for _, p := range []string{".dockerenv", "dev/", "etc/", "proc/", "sys/"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// export returns the files of a container that was never started.
func export(t *testing.T, image string) map[string]*tar.Header {
	t.Helper()
	id := docker(t, "create", "--name", prefix+"-export", image, "none")
	defer docker(t, "rm", id)
	cmd := exec.CommandContext(t.Context(), "docker", "export", id)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	files := map[string]*tar.Header{}
	all := tar.NewReader(out)
	for {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = h
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return files
}

// copyOut copies a file of an image.
func copyOut(t *testing.T, image, from, to string) {
	t.Helper()
	id := docker(t, "create", "--name", prefix+"-copy-"+filepath.Base(from), image, "none")
	defer docker(t, "rm", id)
	docker(t, "cp", id+":/"+from, to)
}

// TestBinariesNameWhatTheyAreMadeOf is for lists of software:
// the modules with their versions are in the binaries, and cgo is not.
func TestBinariesNameWhatTheyAreMadeOf(t *testing.T) {
	if withoutDocker(t) {
		return
	}
	made := built(t)
	dir := t.TempDir()
	for binary, image := range map[string]string{"fabricd": made.fabricd, "keeper": made.apps, "visitor": made.apps} {
		file := filepath.Join(dir, binary)
		copyOut(t, image, binary, file)
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" {
			t.Errorf("%s was built with %v, want neither cgo nor paths of the builder", binary, settings)
		}
		for _, dep := range info.Deps {
			if dep.Version == "" || dep.Sum == "" {
				t.Errorf("%s: module %s has version %q and sum %q", binary, dep.Path, dep.Version, dep.Sum)
			}
		}
		if binary == "fabricd" && len(info.Deps) < 10 {
			t.Errorf("fabricd names %d modules: the list is not there", len(info.Deps))
		}
		os.Remove(file)
	}
}
