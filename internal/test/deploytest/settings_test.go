package deploytest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/fabricd/fabricd/internal/daemon"
)

// TestConfigurationsAreFabricds loads every configuration that the files in
// deploy/ give to a fabricd, as fabricd does: every setting is one, with a value
// that is allowed.
func TestConfigurationsAreFabricds(t *testing.T) {
	type container struct {
		Image string
		Args  []string
		Env   []struct{ Name, Value string }
	}
	type manifest struct {
		Kind string
		Data map[string]string
		Spec struct {
			Template struct {
				Spec struct {
					InitContainers []container `yaml:"initContainers"`
					Containers     []container
				}
			}
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "fabricd.yaml")
	loaded := 0
	for _, name := range []string{"config.yaml", "host.yaml", "nodes.yaml", "machines/machines.yaml"} {
		docs := yaml.NewDecoder(strings.NewReader(readFile(t, "deploy/k8s/"+name)))
		for {
			var m manifest
			if docs.Decode(&m) != nil {
				break // deploy/check reports mistakes
			}
			if m.Kind == "ConfigMap" {
				if err := os.WriteFile(file, []byte(m.Data["fabricd.yaml"]), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range append(m.Spec.Template.Spec.InitContainers, m.Spec.Template.Spec.Containers...) {
				if !strings.HasPrefix(c.Image, "fabricd:") || len(c.Args) > 0 {
					continue
				}
				var environ []string
				config := ""
				for _, e := range c.Env {
					switch {
					case e.Name == "FABRIC_CONFIG":
						config = file
					case e.Value == "": // the pod's own name or address
						environ = append(environ, e.Name+"=10.0.0.1")
					default:
						environ = append(environ, e.Name+"="+e.Value)
					}
				}
				settingsAllowed(t, name, config, environ)
				loaded++
			}
		}
	}
	if loaded != 4 {
		t.Errorf("%d configurations of Kubernetes were loaded, want 4", loaded)
	}
	for _, name := range []string{"host.yaml", "node.yaml"} {
		settingsAllowed(t, name, filepath.Join(root, "deploy/systemd", name), nil)
	}
	var compose struct {
		Services map[string]struct{ Environment map[string]string }
	}
	if err := yaml.UnmarshalWithOptions([]byte(readFile(t, "deploy/compose.yaml")), &compose, yaml.AllowDuplicateMapKey()); err != nil {
		t.Fatal(err)
	}
	for _, name := range daemons {
		var environ []string
		for key, value := range compose.Services[name].Environment {
			environ = append(environ, key+"="+value)
		}
		if len(environ) < 3 {
			t.Errorf("service %s has the environment %q", name, environ)
		}
		settingsAllowed(t, "compose.yaml: "+name, "", environ)
	}
}

func settingsAllowed(t *testing.T, what, file string, environ []string) {
	t.Helper()
	if _, err := daemon.Load(file, environ, nil); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if unknown := daemon.UnknownEnv(environ); len(unknown) > 0 {
		t.Errorf("%s: no settings have the names %q", what, unknown)
	}
}

// TestSysctlKeysExist on this kernel, and each has its reason above it.
func TestSysctlKeysExist(t *testing.T) {
	comment, keys := "", 0
	for line := range strings.Lines(readFile(t, "deploy/sysctl.conf")) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			comment = ""
		case strings.HasPrefix(line, "#"):
			comment += line
		default:
			key, value, ok := strings.Cut(line, " = ")
			if !ok || value == "" || len(comment) < 40 {
				t.Errorf("%q: want key = value and above it the reason, which is %q", line, comment)
			}
			readSysctl(t, strings.ReplaceAll(key, ".", "/"))
			keys++
		}
	}
	if keys != 2 {
		t.Errorf("%d settings, want those that fabricd's own warning names", keys)
	}
}
