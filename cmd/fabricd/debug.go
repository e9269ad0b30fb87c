package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/doctor"
)

// debugSince is how far back the events of a debug archive go.
const debugSince = 24 * time.Hour

// A debugFile is one file of a debug archive.
type debugFile struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	text  []byte
}

// A debugArchive is the output of `fabricd debug --json`.
type debugArchive struct {
	Archive string      `json:"archive"`
	Files   []debugFile `json:"files"`
	// Missing are the files that could not be made, each with the reason.
	Missing []string `json:"missing,omitempty"`
}

func (a *app) debugCommand() *cobra.Command {
	var f askFlags
	var file string
	cmd := &cobra.Command{
		Use: "debug", Short: "Write the state of this node to one archive, without its secrets",
		Long: `debug writes a new tar.gz archive, with mode 0600: versions, settings, status, the
tables of nodes, links, connections, ports and windows, the events of the last day as
far as the node keeps them, metrics, goroutines, memory, and what doctor finds. No key, token or
certificate is in it; names and addresses of nodes are.`,
		Example: `  fabricd debug
  fabricd debug --out node-3.tar.gz --json`,
	}
	f.addTo(cmd)
	cmd.Flags().StringVar(&file, "out", "", "new file to write (default fabricd-debug-NAME-TIME.tar.gz)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.ask(cmd, &f, func(ctx context.Context, c *daemon.Client) error {
			st, err := c.Status(ctx)
			if err != nil {
				return err
			}
			name := "fabricd-debug-" + st.Name + "-" + time.Now().UTC().Format("20060102T150405Z")
			if file == "" {
				file = name + ".tar.gz"
			}
			archive := a.collect(ctx, c)
			if err := archive.write(file, name); err != nil {
				return err
			}
			return archive.print(a.stdout, f.json)
		})
	}
	return cmd
}

// collect asks fabricd for all files. One that fails is added to Missing.
func (a *app) collect(ctx context.Context, c *daemon.Client) *debugArchive {
	d := &debugArchive{}
	for _, name := range append([]string{"status", "nodes", "health", "keys", "ca", "gateways"}, daemon.TableNames...) {
		text, err := c.Get(ctx, name)
		d.add(name+".json", text, err)
	}
	var events bytes.Buffer // whose writes do not fail
	lines := json.NewEncoder(&events)
	err := c.RecordedEvents(ctx, debugSince, true, func(e daemon.NodeEvent) error { return lines.Encode(e) })
	if errors.Is(err, io.EOF) {
		err = nil
	}
	d.add("events.jsonl", events.Bytes(), err)
	text, err := c.Get(ctx, "metrics")
	d.add("metrics.prom", text, err)
	p, err := c.Debug(ctx)
	if err != nil {
		d.Missing = append(d.Missing, "process: "+err.Error())
		return d
	}
	d.add("goroutines.txt", []byte(p.Goroutines), nil)
	d.addJSON("memory.json", p.Memory)
	d.addJSON("settings.json", p.Settings)
	d.addJSON("version.json", map[string]string{"version": p.Version, "go": p.Go, "platform": p.Platform, "fabricd_debug": buildVersion()})
	own, err := daemon.Load("", nil, p.Settings)
	if err != nil {
		d.Missing = append(d.Missing, "doctor: "+err.Error())
		return d
	}
	d.addJSON("doctor.json", doctor.Judge(own, doctor.Look(ctx, own, a.environ, c)))
	return d
}

func (d *debugArchive) addJSON(name string, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	d.add(name, text, err)
}

// add adds a file, or why there is none.
func (d *debugArchive) add(name string, text []byte, err error) {
	if err != nil {
		d.Missing = append(d.Missing, name+": "+err.Error())
		return
	}
	d.Files = append(d.Files, debugFile{name, len(text), text})
}

// write writes the archive, all below a directory called name.
func (d *debugArchive) write(file, name string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(file) // half an archive is none
			err = fmt.Errorf("debug archive %s: %w", file, err)
		}
	}()
	zip := gzip.NewWriter(f)
	out := tar.NewWriter(zip)
	for _, file := range d.Files {
		head := &tar.Header{Name: path.Join(name, file.Name), Mode: 0o600, Size: int64(len(file.text)), ModTime: time.Now()}
		if err := out.WriteHeader(head); err != nil {
			return err
		}
		if _, err := out.Write(file.text); err != nil {
			return err
		}
	}
	if d.Archive, err = filepath.Abs(file); err != nil {
		return err
	}
	return errors.Join(out.Close(), zip.Close())
}

func (d *debugArchive) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(d)
	}
	for _, m := range d.Missing {
		if err := printLine(w, "missing: %s", m); err != nil {
			return err
		}
	}
	return printLine(w, "%s: %s; no secrets are in it", d.Archive, plural(len(d.Files), "file"))
}
