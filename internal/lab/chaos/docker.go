package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

const (
	// runLabel is on every container and network that a run makes; its value is
	// the run's name.
	runLabel = "io.fabricd.chaos"
	// dockerLimit bounds one request. Removing a network may take seconds.
	dockerLimit = 30 * time.Second
	// maxDockerAnswer bounds an answer that is read, in bytes.
	maxDockerAnswer = 8 << 20
)

// A docker asks the Docker engine of this machine through its socket. Its
// methods may be called from any goroutine.
type docker struct {
	socket string
	http   http.Client
}

// dockerSocket returns the path of the engine's socket: $DOCKER_HOST if it is
// one, else where it usually is.
func dockerSocket() string {
	if path, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
		return path
	}
	return "/var/run/docker.sock"
}

func newDocker(socket string) *docker {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &docker{socket: socket, http: http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// close closes idle connections.
func (d *docker) close() { d.http.CloseIdleConnections() }

// A dockerError is a refusal of the engine.
type dockerError struct {
	code    int
	message string
}

func (e *dockerError) Error() string { return fmt.Sprintf("docker: %s", e.message) }

// gone reports whether err means that the container or network does not exist, or is
// being removed already.
func gone(err error) bool {
	e, ok := errors.AsType[*dockerError](err)
	return ok && (e.code == http.StatusNotFound || e.code == http.StatusConflict && strings.Contains(e.message, "in progress"))
}

// ask sends one request; in and out may be nil.
func (d *docker) ask(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, dockerLimit)
	defer cancel()
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.http.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the made-up URL
		}
		return fmt.Errorf("docker: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxDockerAnswer))
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		var e struct{ Message string }
		if json.Unmarshal(text, &e) != nil || e.Message == "" {
			e.Message = resp.Status
		}
		return &dockerError{resp.StatusCode, oneLine([]byte(e.Message))}
	}
	if out == nil || len(text) == 0 {
		return nil
	}
	return json.Unmarshal(text, out)
}

// stream returns the body of an answer that may be long. The caller closes it.
func (d *docker) stream(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("docker: %s", resp.Status)
	}
	return resp.Body, nil
}

// present refuses a run for which there is no Docker, or no image.
func (d *docker) present(ctx context.Context, image string) error {
	if err := d.ask(ctx, http.MethodGet, "/version", nil, nil); err != nil {
		return &Refusal{text: fmt.Sprintf("no Docker engine answers at %s, which the compose lab needs", d.socket), err: err}
	}
	err := d.ask(ctx, http.MethodGet, "/images/"+url.PathEscape(image)+"/json", nil, nil)
	if gone(err) {
		return refusef("there is no image %s; make it with `make image`", image)
	}
	return err
}

// labelQuery returns the query that selects the objects with a label.
func labelQuery(label string) string {
	text, err := json.Marshal(map[string][]string{"label": {label}})
	if err != nil {
		panic("BUG: chaos: a query has no JSON: " + err.Error())
	}
	return "filters=" + url.QueryEscape(string(text))
}

// A dockerThing is a container or a network in a list.
type dockerThing struct {
	ID     string `json:"Id"`
	Labels map[string]string
}

// dockerKinds are the kinds of objects that a run makes, in the order of their removal.
var dockerKinds = []struct{ list, remove, query string }{
	{"/containers/json?all=1&", "/containers/", "?force=1&v=1"},
	{"/networks?", "/networks/", ""},
}

// labelled returns the names of the runs that have containers or networks.
func (d *docker) labelled(ctx context.Context) ([]string, error) {
	var names []string
	for _, kind := range dockerKinds {
		var all []dockerThing
		if err := d.ask(ctx, http.MethodGet, kind.list+labelQuery(runLabel), nil, &all); err != nil {
			return nil, err
		}
		for _, thing := range all {
			names = append(names, thing.Labels[runLabel])
		}
	}
	return names, nil
}

// removeLabelled removes the containers and networks of a run.
func (d *docker) removeLabelled(ctx context.Context, name string) error {
	var errs []error
	for _, kind := range dockerKinds {
		var all []dockerThing
		errs = append(errs, d.ask(ctx, http.MethodGet, kind.list+labelQuery(runLabel+"="+name), nil, &all),
			everywhere(all, func(thing dockerThing) error {
				err := d.ask(ctx, http.MethodDelete, kind.remove+thing.ID+kind.query, nil, nil)
				if gone(err) {
					return nil
				}
				return err
			}))
	}
	return errors.Join(errs...)
}
