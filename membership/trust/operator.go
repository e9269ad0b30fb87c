package trust

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Files name an operator's own credentials (--ca, --cert and --key): PEM files
// with the trusted CA certificates, the node's certificate with its
// intermediates, and its private key.
type Files struct {
	CA   string
	Cert string
	Key  string
}

// An Operator keeps a [Store] equal to an operator's files. It watches nothing
// by itself: its owner calls [Operator.Reload] now and then.
type Operator struct {
	files Files
	now   func() time.Time
	store *Store

	mu   sync.Mutex // guards seen; held during a reload
	seen [sha256.Size]byte
}

// LoadOperator reads and checks the files. Its errors name the file that is wrong and the mistake
// in it.
func LoadOperator(files Files, now func() time.Time) (*Operator, error) {
	creds, sum, err := files.load(now())
	if err != nil {
		return nil, err
	}
	store, err := NewStore(creds, now)
	if err != nil {
		return nil, err
	}
	return &Operator{files: files, now: now, store: store, seen: sum}, nil
}

// Store returns the store that Reload updates.
func (o *Operator) Store() *Store { return o.store }

// Reload reads the files again and, if they changed, replaces the credentials
// in the store. After an error the store is as it was, and the next Reload
// tries again: files are often replaced one after the other, and the pair does
// not match in between.
func (o *Operator) Reload() (changed bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	creds, sum, err := o.files.load(o.now())
	if err != nil {
		return false, fmt.Errorf("reload certificates: %w", err)
	}
	if sum == o.seen {
		return false, nil
	}
	if err := o.store.Replace(creds); err != nil {
		return false, err
	}
	o.seen = sum
	return true, nil
}

// load reads and checks the three files. The sum changes when one of them does.
func (f Files) load(now time.Time) (creds Credentials, sum [sha256.Size]byte, err error) {
	var parts [][]byte
	for _, file := range []struct {
		flag, path string
		parse      func([]byte) error
	}{
		{"--ca", f.CA, func(b []byte) (err error) { creds.Roots, err = parseCertificates(b); return err }},
		{"--cert", f.Cert, func(b []byte) (err error) { creds.Chain, err = parseCertificates(b); return err }},
		{"--key", f.Key, func(b []byte) (err error) { creds.Key, err = DecodeKey(b); return err }},
	} {
		b, err := readPEM(file.flag, file.path)
		if err != nil {
			return Credentials{}, sum, err
		}
		if err := file.parse(b); err != nil {
			return Credentials{}, sum, fmt.Errorf("%s %s: %w", file.flag, file.path, err)
		}
		parts = append(parts, b)
	}
	if _, err := creds.Check(now); err != nil {
		return Credentials{}, sum, fmt.Errorf("--cert %s, --key %s, --ca %s: %w", f.Cert, f.Key, f.CA, err)
	}
	return creds, sumOf(parts...), nil
}

func sumOf(parts ...[]byte) [sha256.Size]byte {
	h := sha256.New()
	for _, p := range parts {
		sum := sha256.Sum256(p)
		h.Write(sum[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// readPEM reads a file whose size it bounds.
func readPEM(flag, path string) ([]byte, error) {
	if path == "" {
		return nil, fmt.Errorf("%s: not set; --ca, --cert and --key go together", flag)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPEMBytes+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if len(b) > maxPEMBytes {
		return nil, fmt.Errorf("%s %s: more than %d bytes: %w", flag, path, maxPEMBytes, ErrTooBig)
	}
	return b, nil
}
