package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/filecopy"
)

const (
	cpAtOnce   = 16 // files that a receiver takes at a time; further senders wait
	cpProgress = 500 * time.Millisecond
)

// cpFlags are the flags of cp.
type cpFlags struct {
	socket, listen, into string
	replace, json        bool
	maxSize              int64
	allow                []string
}

func (a *app) cpCommand() *cobra.Command {
	var f cpFlags
	cmd := &cobra.Command{
		Use: "cp FILE NAME:[AS]", Short: "Copy a file to another node, or take files from others",
		Long: `cp copies FILE to the cp that listens as NAME, a service or node:port, under its own name
or under AS. With --listen it takes files into a directory until Ctrl-C. A file has its name
only when all of it has come and its checksum is right; one that was cut off goes on where it
was at the next try.`,
		Example: `  fabricd cp --listen inbox --into /srv/inbox --allow label:app
  fabricd cp dump.sql inbox:
  fabricd cp dump.sql inbox@web-1:today.sql`,
		Args: func(_ *cobra.Command, args []string) error {
			if want := 2; f.listen == "" && len(args) != want || f.listen != "" && len(args) != 0 {
				return errors.New("want FILE and NAME:, or --listen NAME and --into DIR alone")
			}
			return nil
		},
	}
	addSocket(cmd, &f.socket)
	cmd.Flags().StringVar(&f.listen, "listen", "", "take files, as this service or port")
	cmd.Flags().StringVar(&f.into, "into", "", "directory for files that are taken")
	cmd.Flags().BoolVar(&f.replace, "replace", false, "replace files that are there already")
	cmd.Flags().Int64Var(&f.maxSize, "max-size", 0, "refuse larger files, in bytes; 0: none")
	cmd.Flags().StringSliceVar(&f.allow, "allow", nil, "which nodes may send files, as in access rules; all if empty")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON: an object for each file")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := onlyWith(cmd, "listen", "into", "replace", "max-size", "allow"); err != nil {
			return err
		}
		if f.maxSize < 0 {
			return usagef("max-size: %d: want a number of bytes, or 0", f.maxSize)
		}
		if f.listen != "" {
			return a.takeFiles(cmd.Context(), f)
		}
		return a.sendFile(cmd.Context(), f, args[0], args[1])
	}
	return cmd
}

// sendFile sends one file.
func (a *app) sendFile(ctx context.Context, f cpFlags, path, to string) error {
	i := strings.LastIndex(to, ":")
	if i < 1 {
		return usagef("%q: want NAME: or NAME:AS, like inbox:", to)
	}
	address, name := to[:i], to[i+1:]
	if name == "" {
		name = filepath.Base(path)
	}
	if err := filecopy.CheckName(name); err != nil {
		return usageError{err}
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer must not block the open
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := filecopy.CheckFile(file); err != nil {
		return err
	}
	n, err := a.attach(ctx, f.socket)
	if err != nil {
		return err
	}
	defer n.Close()
	c, err := n.Dial(ctx, address)
	if err != nil {
		return err
	}
	defer c.Close() // an error after the receiver's answer does not matter
	defer context.AfterFunc(ctx, func() { _ = c.Abort("interrupted") })()
	show := progressTo(a.stderr)
	r, err := filecopy.Send(c, file, name, show)
	if ctx.Err() != nil {
		return errors.New("interrupted; the same command goes on from here")
	}
	if err != nil {
		return lostBy(c, err)
	}
	return a.copied(f, "sent", r, "")
}

// copied prints that a file was copied.
func (a *app) copied(f cpFlags, verb string, r filecopy.Result, from string) error {
	if f.json {
		return json.NewEncoder(a.stdout).Encode(struct {
			filecopy.Result
			Node string `json:"node,omitempty"`
		}{r, from})
	}
	text := fmt.Sprintf("%s %s, %s", verb, r.Name, size(uint64(r.Size)))
	if from != "" {
		text += ", from " + from
	}
	if r.From > 0 {
		text += fmt.Sprintf(", of which %s were there", size(uint64(r.From)))
	}
	return printLine(a.stdout, "%s, SHA-256 %s", text, r.SHA256)
}

// progressTo returns a function that shows the progress of a copy; nil: w is no terminal.
func progressTo(w io.Writer) func(done, size int64) {
	if f, ok := w.(*os.File); !ok || !isTerminal(f) {
		return nil
	}
	began, shown := time.Now(), time.Now()
	return func(done, all int64) {
		if time.Since(shown) < cpProgress {
			return
		}
		shown = time.Now()
		rate := uint64(float64(done) / time.Since(began).Seconds())
		fmt.Fprintf(w, "\r%3d %%  %s of %s, %s/s   \r", 100*done/max(all, 1), size(uint64(done)), size(uint64(all)), size(rate))
	}
}

// takeFiles takes files until ctx ends.
func (a *app) takeFiles(ctx context.Context, f cpFlags) error {
	if f.into == "" {
		return usagef("into: want the directory that files are taken into")
	}
	root, err := os.OpenRoot(f.into)
	if err != nil {
		return err
	}
	defer root.Close()
	n, err := a.attach(ctx, f.socket)
	if err != nil {
		return err
	}
	defer n.Close()
	l, err := listenAs(n, f.listen, f.allow)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	if err := printLine(a.stderr, "takes files as %s at %s into %s; Ctrl-C ends it", f.listen, l.Addr(), f.into); err != nil {
		return err
	}
	t := &taker{app: a, flags: f, receiver: filecopy.Receiver{Into: root, Replace: f.replace, MaxSize: f.maxSize}}
	return t.run(ctx, l)
}

// A taker takes the files of all senders.
type taker struct {
	app      *app
	flags    cpFlags
	receiver filecopy.Receiver
	out      sync.Mutex // held while a line is printed
}

// run takes files from connections of l until that is closed.
func (t *taker) run(ctx context.Context, l *fabric.Listener) error {
	var all sync.WaitGroup
	defer all.Wait()
	places := make(chan struct{}, cpAtOnce)
	for {
		c, err := l.AcceptConn(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			t.take(ctx, c)
		})
	}
}

// take takes one file and prints the result.
func (t *taker) take(ctx context.Context, c *fabric.Conn) {
	defer context.AfterFunc(ctx, func() { _ = c.Abort("interrupted") })()
	from := "an unknown node"
	if p, err := c.Peer(); err == nil {
		from = p.Name
	}
	r, err := t.receiver.Receive(c)
	cerr := c.Close()
	t.out.Lock()
	defer t.out.Unlock()
	if err != nil {
		_ = printLine(t.app.stderr, "fabricd: from %s: %v", from, err) // there is no other place to report it
		return
	}
	if err := errors.Join(t.app.copied(t.flags, "took", r, from), ignoreClosed(cerr)); err != nil {
		_ = printLine(t.app.stderr, "fabricd: %v", err) // as above
	}
}

// ignoreClosed returns err, or nil if it is net.ErrClosed.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
