package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// Bounds of a token, in bytes.
const (
	minToken = 16
	maxToken = 512
)

// CheckToken returns an error for a token of a wrong length or with unprintable characters.
func CheckToken(token []byte) error {
	if len(token) < minToken || len(token) > maxToken {
		return fmt.Errorf("holds %d bytes; want a token of %d to %d characters", len(token), minToken, maxToken)
	}
	for _, c := range token {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("holds a character that no header can have; want letters, digits and signs")
		}
	}
	return nil
}

// cookieName begins the name of the cookie that a browser gets for a token. Cookies do not
// know ports: that of the address follows.
const cookieName = "fabricd-page-"

// answerTime bounds the rest of a request, and the taking of its answer.
const answerTime = 10 * time.Second

// A guard decides which requests are answered.
type guard struct {
	token []byte // nil: none is needed, and the request has to be for loopback
	next  http.Handler
}

// policy lets the page have nothing but its own files.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	// A stranger that sends no whole request, or takes no answer, is cut off. Streams set
	// their own time for each event. Both fail only on a connection that is gone.
	control, late := http.NewResponseController(w), time.Now().Add(answerTime)
	_ = control.SetWriteDeadline(late)
	if r.ContentLength != 0 {
		_ = control.SetReadDeadline(late)
		h.Set("Connection", "close")
	}
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	switch {
	case r.ContentLength != 0:
		http.Error(w, "this address only shows: want no body", http.StatusBadRequest)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "this address only shows: want GET", http.StatusMethodNotAllowed)
	case r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate":
		http.Error(w, "another site may not read this", http.StatusForbidden)
	case g.token == nil && !forLoopback(r.Host):
		http.Error(w, "this address is served as localhost or by its IP address only", http.StatusMisdirectedRequest)
	case g.token == nil || g.shown(r):
		g.next.ServeHTTP(w, r)
	case g.login(w, r):
	default:
		h.Set("WWW-Authenticate", `Bearer realm="fabricd"`)
		http.Error(w, "a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN once in a browser", http.StatusUnauthorized)
	}
}

// forLoopback reports whether the Host of a request names this machine by itself. A name
// that a stranger's DNS server has made one of loopback does not.
func forLoopback(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(name, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.Unmap().IsLoopback()
}

// shown reports whether the request shows the token, or the cookie that was given for it.
func (g *guard) shown(r *http.Request) bool {
	if text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && g.same(text) {
		return true
	}
	c, err := r.Cookie(cookieFor(r))
	return err == nil && subtle.ConstantTimeCompare([]byte(c.Value), []byte(g.pass())) == 1
}

// same reports whether text is the token, in a time that does not depend on how much matches.
func (g *guard) same(text string) bool {
	return subtle.ConstantTimeCompare([]byte(text), g.token) == 1
}

// pass is the value of the cookie: it opens this page and is not the token.
func (g *guard) pass() string {
	m := hmac.New(sha256.New, g.token)
	m.Write([]byte("the page of a node of fabricd"))
	return hex.EncodeToString(m.Sum(nil))
}

// cookieFor returns the name of the cookie of the address that a request came to.
func cookieFor(r *http.Request) string {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return fmt.Sprint(cookieName, a.Port)
	}
	return cookieName
}

// login gives a browser the cookie for ?token=, and sends it on to the same page without
// the token in its address.
func (g *guard) login(w http.ResponseWriter, r *http.Request) bool {
	// A plus sign, as base64 has it, is read as a space, which no token has.
	if !g.same(strings.ReplaceAll(r.URL.Query().Get("token"), " ", "+")) {
		return false
	}
	http.SetCookie(w, &http.Cookie{Name: cookieFor(r), Value: g.pass(), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	// Only the path, rooted once: a target that begins with // would be another site's.
	to := url.URL{Path: "/" + strings.TrimLeft(r.URL.Path, "/")}
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
	return true
}
