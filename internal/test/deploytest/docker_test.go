package deploytest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	root       = "../../.." // of the repository
	buildLimit = 6 * time.Minute
	callLimit  = time.Minute // for one command of Docker
	waitLimit  = 30 * time.Second
	pollEvery  = 50 * time.Millisecond
)

// lacks reports whether the environment says that this machine has no such
// thing; what needs it is not tested then.
func lacks(what string) bool {
	return slices.Contains(strings.Split(os.Getenv("FABRICD_TEST_WITHOUT"), ","), what)
}

// withoutDocker reports that there is no Docker, and that this is known. Docker
// that is missing or does not answer fails the test.
func withoutDocker(t *testing.T) bool {
	t.Helper()
	if lacks("docker") {
		t.Log("not tested: FABRICD_TEST_WITHOUT says that there is no Docker here")
		return true
	}
	if err := dockerAnswers(); err != nil {
		t.Fatal(err)
	}
	return false
}

var dockerAnswers = sync.OnceValue(func() error {
	const hint = "install and start it, or say FABRICD_TEST_WITHOUT=docker"
	if _, err := output(callLimit, nil, "docker", "version", "--format", "{{.Server.Version}}"); err != nil {
		return fmt.Errorf("these tests need Docker: %w; %s", err, hint)
	}
	if _, err := output(callLimit, nil, composeCommand()[0], append(composeCommand()[1:], "version")...); err != nil {
		return fmt.Errorf("these tests need docker-compose or compose 2: %w; %s", err, hint)
	}
	return nil
})

// composeCommands are compose 2 and docker-compose, those that this machine has.
var composeCommands = sync.OnceValue(func() (have [][]string) {
	for _, command := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if _, err := output(callLimit, nil, command[0], append(slices.Clone(command[1:]), "version")...); err == nil {
			have = append(have, command)
		}
	}
	return have
})

// composeCommand is compose 2 where Docker has it, else docker-compose.
func composeCommand() []string {
	if have := composeCommands(); len(have) > 0 {
		return slices.Clone(have[0])
	}
	return []string{"docker-compose"}
}

// output runs a command at the root of the repository and returns what it
// prints to standard output.
func output(limit time.Duration, environ []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), environ...)
	cmd.WaitDelay = time.Second // for a child that keeps the pipe
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, lastLines(stderr.String(), 40))
	}
	return string(out), err
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// docker runs a docker command that must succeed and returns what it prints.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := output(callLimit, nil, "docker", args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// inspect decodes what Docker knows of a container or image.
func inspect[T any](t *testing.T, name string) T {
	t.Helper()
	var all []T
	if err := json.Unmarshal([]byte(docker(t, "inspect", name)), &all); err != nil || len(all) != 1 {
		t.Fatalf("docker inspect %s: %d answers, %v", name, len(all), err)
	}
	return all[0]
}

// eventually waits until check returns nil.
func eventually(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(pollEvery)
	}
}

// prefix begins the names of everything that this run makes.
var prefix = fmt.Sprintf("fabricd-test-%08x", rand.Uint32())

// A pair of images: fabricd's, and that of the applications.
type images struct{ fabricd, apps string }

// lookAtSources asks for every file that the images are built of, so that go
// test knows that these tests depend on them and shows no old result.
func lookAtSources() error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "out" || d.Name() == "bin"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") || d.Name() == "go.sum" || d.Name() == "Dockerfile":
			_, err = os.Stat(path)
		}
		return err
	})
}

var theImages = sync.OnceValues(func() (images, error) {
	if err := lookAtSources(); err != nil {
		return images{}, err
	}
	given := images{os.Getenv("FABRICD_IMAGE"), os.Getenv("FABRICD_APPS_IMAGE")}
	if given.fabricd != "" && given.apps != "" {
		return given, nil
	}
	made := images{prefix + ":fabricd", prefix + ":apps"}
	began := time.Now()
	said, err := output(buildLimit, nil, "deploy/image.sh", made.fabricd, made.apps)
	fmt.Printf("%sdeploytest: the images took %v\n", said, time.Since(began).Round(time.Second))
	return made, err
})

// built returns the images that are tested.
func built(t *testing.T) images {
	t.Helper()
	i, err := theImages()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := cleanUp(); err != nil {
		fmt.Fprintln(os.Stderr, "deploytest:", err)
		code = 1
	}
	os.Exit(code)
}

// cleanUp removes what is left under the prefix. Containers, networks and
// volumes that the tests themselves did not remove are an error.
func cleanUp() error {
	if lacks("docker") || dockerAnswers() != nil {
		return nil
	}
	var errs []error
	for _, kind := range []struct {
		name         string
		list, remove []string
	}{
		{"container", []string{"ps", "-aq", "--filter", "name=" + prefix}, []string{"rm", "-f"}},
		{"network", []string{"network", "ls", "-q", "--filter", "name=" + prefix}, []string{"network", "rm"}},
		{"volume", []string{"volume", "ls", "-q", "--filter", "name=" + prefix}, []string{"volume", "rm"}},
	} {
		out, err := output(callLimit, nil, "docker", kind.list...)
		left := strings.Fields(out)
		if err != nil || len(left) == 0 {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, fmt.Errorf("the tests left %d %ss behind", len(left), kind.name))
		_, err = output(callLimit, nil, "docker", append(kind.remove, left...)...)
		errs = append(errs, err)
	}
	// Only the names: what they were built of is the next build's cache.
	if out, err := output(callLimit, nil, "docker", "images", "-q", prefix); err == nil && out != "" {
		_, err = output(callLimit, nil, "docker", "rmi", prefix+":fabricd", prefix+":apps")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// readFile returns a file of the repository.
func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
