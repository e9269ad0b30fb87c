package main

import (
	"errors"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// inline matches a command within a sentence of README.md.
var inline = regexp.MustCompile("`((?:make|go|fabricd) [^`]+)`")

// TestREADMEInlineCommands checks the commands that README.md mentions in sentences: it
// looks go's answers up, lets make plan, and parses the command lines of fabricd.
func TestREADMEInlineCommands(t *testing.T) {
	found := inline.FindAllStringSubmatch(readme(t), -1)
	if len(found) == 0 {
		t.Error("README.md mentions no command: nothing is tested")
	}
	for _, match := range found {
		line := strings.Fields(match[1])
		var err error
		switch line[0] {
		case "fabricd":
			err = understood(line[1:])
		case "make":
			line = append([]string{"make", "-n"}, line[1:]...)
			err = look(t, line)
		case "go":
			if match[1] == "go mod tidy" { // run by TestREADMECommands
				break
			}
			if len(line) < 2 || line[1] != "doc" { // others write, and this is the source
				err = errors.New("README.md runs no go command but doc in passing")
				break
			}
			err = look(t, line)
		default:
			err = errors.New("a command that this test does not know")
		}
		if err != nil {
			t.Errorf("%s: %v", match[1], err)
		}
	}
}

// look runs a command that only reads, at the root of the source.
func look(t *testing.T, line []string) error {
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
	cmd.Dir = "../.."
	_, err := cmd.Output()
	return err
}
