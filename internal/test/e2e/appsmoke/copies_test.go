package appsmoke

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	largeBytes  = 1 << 30
	copiedBytes = 64 << 20
	copyLimit   = 2 * time.Minute
)

// writeWords writes n bytes that differ at each offset's 8-byte word, and returns their
// checksum.
func writeWords(path string, n int) ([sha256.Size]byte, error) {
	f, err := os.Create(path)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	defer f.Close()
	sum := sha256.New()
	to := io.MultiWriter(f, sum)
	buf := make([]byte, 1<<20)
	for i := uint64(0); n > 0; n -= len(buf) {
		for at := 0; at < len(buf); at += 8 {
			binary.LittleEndian.PutUint64(buf[at:], i*0x9e3779b97f4a7c15)
			i++
		}
		if _, err := to.Write(buf); err != nil {
			return [sha256.Size]byte{}, err
		}
	}
	return [sha256.Size]byte(sum.Sum(nil)), f.Close()
}

const sshdConfig = `Port 22
ListenAddress 127.0.0.1
HostKey %[1]s/host
PidFile none
AuthorizedKeysFile %[1]s/client.pub
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
Subsystem sftp internal-sftp
MaxStartups 100
`

// startSSH starts OpenSSH's server, for the clients' key.
func (l *lab) startSSH(dir string) (*process, error) {
	err := errors.Join(os.MkdirAll("/run/sshd", 0o755), // where the server wants to have nothing
		quiet("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, "host")),
		quiet("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, "client")),
		os.WriteFile(filepath.Join(dir, "conf"), fmt.Appendf(nil, sshdConfig, dir), 0o600))
	if err != nil {
		return nil, err
	}
	return start(l.servers.inside(context.Background(), "/usr/sbin/sshd", "-D", "-e", "-f", filepath.Join(dir, "conf")), filepath.Join(l.dir, "ssh.log"))
}

// startGit starts git's own server, of one repository with a commit of many files.
func (l *lab) startGit(dir string) (*process, error) {
	repo := filepath.Join(dir, "repo")
	if err := os.Mkdir(repo, 0o755); err != nil {
		return nil, err
	}
	for i := range 500 {
		if err := os.WriteFile(filepath.Join(repo, fmt.Sprint("file-", i)), bytes.Repeat(fmt.Appendf(nil, "line of %d\n", i), 1000), 0o600); err != nil {
			return nil, err
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "files"}} {
		if err := quiet(append([]string{"git", "-C", repo}, args...)...); err != nil {
			return nil, err
		}
	}
	return start(l.servers.inside(context.Background(), "git", "daemon", "--listen=127.0.0.1", "--export-all", "--base-path="+dir, dir), filepath.Join(l.dir, "git.log"))
}

func (l *lab) ssh() string {
	return "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -i " + filepath.Join(l.dir, "ssh", "client")
}

func (l *lab) checkSSH(ctx context.Context, s *side) error {
	return checkWith(ctx, s, "hello\n", append(strings.Fields(l.ssh()), "root@127.0.0.1", "echo hello")...)
}

func checkGit(ctx context.Context, s *side) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return quietly(s.inside(ctx, "git", "ls-remote", "-q", "git://127.0.0.1/repo"))
}

// copies copies files across the fabric by the usual programs, and compares them.
func (r *run) copies(ctx context.Context, p *printer) {
	l := r.lab
	from, to := filepath.Join(l.dir, "copied"), filepath.Join(l.dir, r.provider+"-copies")
	sum, err := writeWords(from, copiedBytes)
	if err == nil {
		err = os.Mkdir(to, 0o755)
	}
	if err != nil {
		p.broke("%v", err)
		return
	}
	r.download(ctx, p)
	ssh := l.ssh()
	for _, c := range []struct {
		name string
		argv []string
		file string
	}{
		{"scp to the server", append(strings.Fields(strings.Replace(ssh, "ssh", "scp", 1)), from, "root@127.0.0.1:"+to+"/a"), to + "/a"},
		{"scp from the server", append(strings.Fields(strings.Replace(ssh, "ssh", "scp", 1)), "root@127.0.0.1:"+from, to+"/b"), to + "/b"},
		{"rsync over ssh", []string{"rsync", "-a", "--no-compress", "-e", ssh, from, "root@127.0.0.1:" + to + "/c"}, to + "/c"},
	} {
		took, err := timed(ctx, l.clients, c.argv...)
		if err == nil {
			err = same(c.file, sum)
		}
		p.check(err == nil, "%s: %d MiB with the right checksum in %.1f s: %v", c.name, copiedBytes>>20, took.Seconds(), err)
	}
	clone := filepath.Join(to, "clone")
	took, err := timed(ctx, l.clients, "git", "clone", "-q", "git://127.0.0.1/repo", clone)
	if err == nil {
		err = quiet("git", "-C", clone, "fsck", "--full", "--strict")
	}
	files, _ := filepath.Glob(clone + "/file-*") // the pattern is a good one
	p.check(err == nil && len(files) == 500, "git clone: %d files in %.1f s: %v", len(files), took.Seconds(), err)
	_ = os.RemoveAll(to) // with the lab's directory, if not now
}

// download gets the large file from nginx.
func (r *run) download(ctx context.Context, p *printer) {
	ctx, cancel := context.WithTimeout(ctx, copyLimit)
	defer cancel()
	cmd := r.lab.clients.inside(ctx, "curl", "-sS", "-f", "http://"+nginxAt+"/large")
	sum, got := sha256.New(), &counter{}
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(sum, got), &errs
	began := time.Now()
	err := cmd.Run()
	if err == nil && [sha256.Size]byte(sum.Sum(nil)) != r.lab.largeSum {
		err = errors.New("the checksum is wrong")
	}
	p.check(err == nil, "a download of %d MiB with the right checksum in %.1f s: %v%s", got.bytes>>20, time.Since(began).Seconds(), err, errs.String())
}

func timed(ctx context.Context, s *side, argv ...string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, copyLimit)
	defer cancel()
	began := time.Now()
	err := quietly(s.inside(ctx, argv...))
	return time.Since(began), err
}

// same returns an error if a copy differs.
func same(path string, want [sha256.Size]byte) error {
	out, err := exec.Command("sha256sum", path).Output()
	if err != nil {
		return err
	}
	if got, _, _ := strings.Cut(string(out), " "); got != fmt.Sprintf("%x", want) {
		return errors.New("the checksum is wrong")
	}
	return nil
}
