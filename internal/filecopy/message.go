package filecopy

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	version    = 1
	maxMessage = 4096 // bytes of a message
	maxName    = 240  // bytes of a name: a file system has 255, and the partial file adds some
)

// A message is any of those of the protocol.
type message struct {
	Version int    `json:"version,omitempty"`
	Name    string `json:"name,omitempty"`
	Size    int64  `json:"size,omitempty"`
	Offset  int64  `json:"offset,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
	Done    bool   `json:"done,omitempty"`
	Error   string `json:"error,omitempty"`
}

var errNoMessage = errors.New("not a message")

func write(w io.Writer, m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// read reads one message. r has room for the longest.
func read(r *bufio.Reader) (m message, err error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return m, fmt.Errorf("%w: more than %d bytes", errNoMessage, maxMessage)
	}
	if errors.Is(err, io.EOF) {
		return m, io.ErrUnexpectedEOF
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("%w: %w", errNoMessage, err)
	}
	return m, nil
}

// answer reads a message of the receiver.
func answer(r *bufio.Reader) (message, error) {
	m, err := read(r)
	if err == nil && m.Error != "" {
		return m, fmt.Errorf("the receiver refuses: %.300q", m.Error)
	}
	return m, err
}

// CheckName returns an error unless a sender's file name is valid: the name of one file
// in one directory that ls does not hide.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("name: want 1 to %d bytes, got %d", maxName, len(name))
	case strings.ContainsAny(name, "/\\") || name[0] == '.':
		return fmt.Errorf("name: %.300q: want no directory and no '.' at the beginning", name)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("name: %.300q: want printable characters", name)
	}
	return nil
}
