package hostile

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"fmt"
	"strings"
)

// codings returns how a secret may look in a text: as it is, in hex, in base32
// and base64, at whatever place of a longer text that was coded as a whole, and
// as Go prints bytes.
func codings(secret []byte) map[string][]byte {
	small := fmt.Appendf(nil, "%x", secret)
	all := map[string][]byte{
		"as it is":       secret,
		"in hex":         small,
		"in hex, large":  bytes.ToUpper(small),
		"as Go's bytes":  bytes.Trim(fmt.Appendf(nil, "%v", secret), "[]"),
		"as Go's string": bytes.Trim(fmt.Appendf(nil, "%q", secret), `"`),
	}
	for name, e := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64 for URLs": base64.RawURLEncoding} {
		for skip := range 3 { // bytes that share their digits with those before the secret
			part := secret[skip:]
			part = part[:len(part)/3*3] // and behind it
			all[fmt.Sprintf("in %s from byte %d on", name, skip)] = []byte(e.EncodeToString(part))
		}
	}
	for skip := range 5 {
		part := secret[skip:]
		part = part[:len(part)/5*5]
		all[fmt.Sprintf("in base32 from byte %d on", skip)] = []byte(base32.StdEncoding.EncodeToString(part))
	}
	return all
}

// Shows returns how a text shows a secret, which is not short: as it is, or in
// a coding. Empty: it does not.
func Shows(text, secret []byte) string {
	for how, coded := range codings(secret) {
		if bytes.Contains(text, coded) {
			return how
		}
	}
	return ""
}

// TokenSecret returns the bytes of a join token's secret: the 20 before its
// checksum.
func TokenSecret(token string) ([]byte, error) {
	_, text, _ := strings.Cut(token, "-")
	raw, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(strings.ToUpper(text))
	if err != nil {
		return nil, err
	}
	if len(raw) != 80 {
		return nil, fmt.Errorf("a token of %d bytes, want 80", len(raw))
	}
	return raw[56:76], nil
}
