package deploytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// debianImage is what deploy/debian/base-image.sh makes.
const debianImage = "fabricd-debian:bookworm"

// TestDebianPackage builds the package, has lintian look at it where that is installed,
// and installs, upgrades, removes and purges it in a container of Debian.
func TestDebianPackage(t *testing.T) {
	if lacks("debian") {
		t.Log("not tested: FABRICD_TEST_WITHOUT says that no package of Debian is built here")
		return
	}
	if withoutDocker(t) {
		return
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Fatalf("this test needs dpkg-deb: %v; or say FABRICD_TEST_WITHOUT=debian", err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "fabricd")
	must(t, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./cmd/fabricd")
	out, err := output(buildLimit, nil, "deploy/debian/build.sh", program, dir)
	if err != nil {
		t.Fatal(err)
	}
	deb := strings.TrimSpace(out)
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Log("lintian is not installed: it has not looked at the package")
	} else if out, err := output(buildLimit, nil, "lintian", "--allow-root", "--fail-on", "error,warning", deb); err != nil {
		t.Errorf("lintian: %v\n%s", err, out)
	}
	script, err := os.ReadFile("testdata/debian.sh")
	if err != nil {
		t.Fatal(err)
	}
	out, err = output(buildLimit, nil, "docker", "run", "--rm", "--network", "none", "-v", filepath.Dir(deb)+":/deb:ro", debian(t),
		"sh", "-euc", string(script), "sh", "/deb/"+filepath.Base(deb))
	if err != nil || !strings.HasSuffix(out, "all is well\n") {
		t.Errorf("in a container: %v\n%s", err, out)
	}
}

// debian returns an image of Debian: the official one if it is here, or one that is made.
func debian(t *testing.T) string {
	t.Helper()
	for _, image := range []string{debianImage, "debian:bookworm-slim"} {
		if _, err := output(callLimit, nil, "docker", "image", "inspect", image); err == nil {
			return image
		}
	}
	if _, err := output(buildLimit, nil, "deploy/debian/base-image.sh", debianImage); err != nil {
		t.Fatalf("no image of Debian: %v; or say FABRICD_TEST_WITHOUT=debian", err)
	}
	return debianImage
}
