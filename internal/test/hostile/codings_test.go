package hostile

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"testing"
)

// TestSecretsAreFoundInEveryCoding hides a secret in texts.
func TestSecretsAreFoundInEveryCoding(t *testing.T) {
	secret := []byte("\x00\xfea secret of \x81 thirty-two bytes\x07")
	for at := range 7 {
		long := append(bytes.Repeat([]byte{'.'}, at), secret...)
		long = append(long, "and more"...)
		for name, text := range map[string]string{
			"raw":       string(long),
			"hex":       hex.EncodeToString(long),
			"base64":    base64.StdEncoding.EncodeToString(long),
			"base64url": base64.URLEncoding.EncodeToString(long),
			"base32":    base32.StdEncoding.EncodeToString(long),
			"%v":        fmt.Sprint(long),
			"%q":        fmt.Sprintf("%q", long),
			"%X":        fmt.Sprintf("%X", long),
		} {
			if Shows([]byte(text), secret) == "" {
				t.Errorf("%s at %d: not found in %s", name, at, text)
			}
		}
	}
	if how := Shows([]byte("nothing of it"), secret); how != "" {
		t.Errorf("found %s in a text without it", how)
	}
}
