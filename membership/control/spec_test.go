package control

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// This file reads SPEC.md as a second implementation would: its tables become
// a grammar, and everything that the grammar makes or reads is held against
// the package's own encoder and decoder.

// A specField is one field of a body: a type of the page and a name, which may
// be empty.
type specField struct {
	typ   string // u8 … u64, bool, uuid, incarnation, time, fixed, bytes, text, list, or a type with fields
	limit int    // of bytes, text and list; the size of fixed
	of    *specField
	name  string
}

type grammar struct {
	frames map[frameType][]specField
	names  map[frameType]string
	last   *int                   // name of a service that write has made
	types  map[string][]specField // end, lease, claim, entry, service
}

func readGrammar(t *testing.T) (g grammar, page string) {
	t.Helper()
	b, err := os.ReadFile("SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	page = string(b)
	g = grammar{map[frameType][]specField{}, map[frameType]string{}, new(int), map[string][]specField{}}
	for _, m := range regexp.MustCompile(`(?m)^\| (end|lease|claim|entry|service) \| (.*) \|$`).FindAllStringSubmatch(page, -1) {
		g.types[m[1]] = fields(t, m[2])
	}
	row := regexp.MustCompile(`(?m)^\| (\d+) \| (?:[→←↔] \| )?([A-Z-]+) \| (.*) \|$`)
	for _, m := range row.FindAllStringSubmatch(page, -1) {
		n, _ := strconv.ParseUint(m[1], 10, 8)
		g.frames[frameType(n)], g.names[frameType(n)] = fields(t, m[3]), m[2]
	}
	if len(g.types) != 5 || len(g.frames) < 20 {
		t.Fatalf("SPEC.md: %d types and %d frames found: the tables are not read right", len(g.types), len(g.frames))
	}
	return g, page
}

func fields(t *testing.T, cell string) (list []specField) {
	t.Helper()
	if cell == "–" {
		return nil
	}
	for item := range strings.SplitSeq(cell, ", ") {
		list = append(list, oneField(t, item))
	}
	return list
}

var fieldForm = regexp.MustCompile(`^(?:(\d+) bytes|(bytes|text|list)\[(\d+)\]|(u8|u16|u32|u64|bool|uuid|incarnation|time|end|lease|claim|entry|service))(?::? (.*))?$`)

func oneField(t *testing.T, item string) specField {
	t.Helper()
	m := fieldForm.FindStringSubmatch(item)
	if m == nil {
		t.Fatalf("SPEC.md: field %q", item)
	}
	f := specField{typ: m[2] + m[4], name: m[5]}
	switch {
	case m[1] != "":
		f.typ = "fixed"
		f.limit, _ = strconv.Atoi(m[1])
	case m[2] == "list":
		f.limit, _ = strconv.Atoi(m[3])
		of := oneField(t, strings.TrimPrefix(f.name, "of "))
		f.of, f.name = &of, of.name
	case m[2] != "":
		f.limit, _ = strconv.Atoi(m[3])
	}
	f.name, _, _ = strings.Cut(f.name, ":") // the rest is a remark
	return f
}

// A leaf is one value that the grammar has read.
type leaf struct {
	name  string
	value any
}

// read decodes one value of f and appends its leaves.
func (g grammar) read(f specField, b []byte, out *[]leaf) ([]byte, error) {
	if sub, ok := g.types[f.typ]; ok {
		var err error
		for _, x := range sub {
			if b, err = g.read(x, b, out); err != nil {
				return nil, err
			}
		}
		return b, nil
	}
	if f.typ == "list" {
		if len(b) < 1 || int(b[0]) > f.limit {
			return nil, fmt.Errorf("%s: count", f.name)
		}
		n, b := int(b[0]), b[1:]
		var err error
		for range n {
			if b, err = g.read(*f.of, b, out); err != nil {
				return nil, err
			}
		}
		return b, nil
	}
	n, head, err := f.size(b)
	if err != nil || head+n > len(b) {
		return nil, fmt.Errorf("%s %s: cut off or too long: %v", f.typ, f.name, err)
	}
	v := b[head : head+n]
	value := any(bytes.Clone(v))
	switch f.typ {
	case "u8", "u16", "u32", "u64", "time":
		value = number(v)
	case "bool":
		value = v[0] == 1
	case "text":
		value = string(v)
	}
	*out = append(*out, leaf{f.name, value})
	return b[head+n:], nil
}

func number(b []byte) (n uint64) {
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return n
}

// size returns how long the value at the beginning of b is, behind a head.
func (f specField) size(b []byte) (n, head int, err error) {
	if n, ok := map[string]int{"u8": 1, "bool": 1, "u16": 2, "u32": 4, "u64": 8, "time": 8, "incarnation": 6, "uuid": 16, "fixed": f.limit}[f.typ]; ok {
		return n, 0, nil
	}
	if len(b) < 2 {
		return 0, 0, fmt.Errorf("no length")
	}
	n = int(binary.BigEndian.Uint16(b))
	if n > f.limit {
		return 0, 0, fmt.Errorf("length %d, at most %d", n, f.limit)
	}
	return n, 2, nil
}

// write appends a random value of f; a length or count that grow chooses.
func (g grammar) write(f specField, r *rand.Rand, b []byte, grow func(f specField) int) []byte {
	for _, x := range g.types[f.typ] {
		b = g.write(x, r, b, grow)
	}
	fill := func(n int) {
		for range n {
			b = append(b, byte(r.Uint32()))
		}
	}
	switch f.typ {
	case "u8", "u16", "u32", "u64", "incarnation", "uuid", "fixed":
		n, _, _ := f.size(nil)
		fill(n)
	case "time":
		b = append(b, byte(r.UintN(128))) // times beyond 2262 do not exist in nanoseconds
		fill(7)
	case "bool":
		b = append(b, byte(r.UintN(2)))
	case "list":
		n := max(grow(f), least[f.typ+" "+f.name])
		b = append(b, byte(n))
		for range n {
			b = g.write(*f.of, r, b, grow)
		}
	case "bytes":
		n := grow(f)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
		fill(n)
	case "text":
		n := max(grow(f), least[f.typ+" "+f.name])
		s := strings.Repeat("t", n)
		switch f.name {
		case "addresses":
			s = s[2:] + ":1"
		case "service": // each behind the one before
			*g.last++
			s = fmt.Sprintf("s%0*d", n-1, *g.last)
		}
		b = append(binary.BigEndian.AppendUint16(b, uint16(n)), s...)
	}
	return b
}

// least is the shortest length of each field of a node's claims.
var least = map[string]int{"text name": 1, "list addresses": 1, "text addresses": 3, "text providers": 1, "text labels": 1, "text service": 8}

// bounded returns the fields of a frame, nested ones too, that have a limit.
func (g grammar) bounded(list []specField) (out []specField) {
	for _, f := range list {
		if f.typ != "fixed" && f.limit > 0 {
			out = append(out, f)
		}
		if f.of != nil {
			out = append(out, g.bounded([]specField{*f.of})...)
		}
		out = append(out, g.bounded(g.types[f.typ])...)
	}
	return out
}

func (g grammar) body(typ frameType, r *rand.Rand, grow func(specField) int) (b []byte) {
	for _, f := range g.frames[typ] {
		b = g.write(f, r, b, grow)
	}
	return b
}

// Every frame of the page is one of the code and the other way around; a frame made from the page's
// tables is decoded and encoded again byte for byte, and each limit holds exactly: at it a frame is
// good, one beyond it is malformed.
func TestSpecificationMakesGoodFrames(t *testing.T) {
	g, _ := readGrammar(t)
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 256 {
		typ := frameType(n)
		if _, inSpec := g.frames[typ]; !inSpec {
			if _, is := formats[typ]; is {
				t.Errorf("frame %d is not in SPEC.md", n)
			}
			continue
		}
		small := func(f specField) int { return r.IntN(min(f.limit, 3) + 1) }
		for range 50 {
			body := g.body(typ, r, small)
			x, err := parseBody(typ, body)
			if err != nil {
				t.Fatalf("%s of SPEC.md, %x: %v", g.names[typ], body, err)
			}
			if again, err := AppendFrame(nil, x); err != nil || !bytes.Equal(again[HeaderLen:], body) || again[4] != byte(n) {
				t.Fatalf("%s of SPEC.md, %x, is encoded as %x, %v", g.names[typ], body, again, err)
			}
		}
		for _, f := range g.bounded(g.frames[typ]) {
			g.checkLimit(t, typ, f, r)
		}
	}
}

// checkLimit tries f at its limit and one beyond; all else is as small as it
// can be.
func (g grammar) checkLimit(t *testing.T, typ frameType, limited specField, r *rand.Rand) {
	t.Helper()
	for over := range 2 {
		grow := func(f specField) int {
			switch {
			case f == limited:
				return f.limit + over
			case f.typ == "list": // the limited field may be inside
				return 1
			}
			return 0
		}
		_, err := parseBody(typ, g.body(typ, r, grow))
		if good := over == 0; (err == nil) != good {
			t.Errorf("%s: %s of %d, in SPEC.md at most %d: %v", g.names[typ], limited.name, limited.limit+over, limited.limit, err)
		}
	}
}

// The golden vectors, read by the page's tables, have the values that were
// encoded, under the names that the page gives them.
func TestSpecificationReadsTheVectors(t *testing.T) {
	g, _ := readGrammar(t)
	named := 0
	for name, x := range frames {
		b, err := AppendFrame(nil, x)
		if err != nil {
			t.Fatal(err)
		}
		var leaves []leaf
		rest := b[HeaderLen:]
		for _, f := range g.frames[frameType(b[4])] {
			if rest, err = g.read(f, rest, &leaves); err != nil {
				t.Fatalf("%s by SPEC.md: %v", name, err)
			}
		}
		if len(rest) != 0 {
			t.Errorf("%s by SPEC.md: %d bytes are left", name, len(rest))
		}
		values := map[string][]string{}
		flatten(reflect.ValueOf(x), "", values)
		named += compare(t, name, leaves, values)
	}
	if named < 60 {
		t.Errorf("only %d fields were found by their names in SPEC.md", named)
	}
}

// compare compares the fields read with those of the struct, by value and, where the page's name is
// that of one field only, by name.
func compare(t *testing.T, frame string, leaves []leaf, values map[string][]string) (named int) {
	t.Helper()
	all := map[string]bool{}
	for _, list := range values {
		for _, v := range list {
			all[v] = true
		}
	}
	for _, l := range leaves {
		v := fmt.Sprint(l.value)
		if b, ok := l.value.([]byte); ok {
			v = fmt.Sprintf("%x", b)
		}
		if v != "0" && v != "" && v != "false" && !all[v] {
			t.Errorf("%s: SPEC.md reads %s as %s, which is no value of %v", frame, l.name, v, values)
		}
		words := strings.Fields(strings.ToLower(l.name))
		if len(words) == 0 {
			continue
		}
		if list := values[words[len(words)-1]]; len(list) > 0 {
			named++
			if !strings.Contains(" "+strings.Join(list, " ")+" ", " "+v+" ") {
				t.Errorf("%s: SPEC.md reads %s as %s, it is %v", frame, l.name, v, list)
			}
		}
	}
	return named
}

// flatten collects the values of x by the names of their fields.
func flatten(x reflect.Value, name string, out map[string][]string) {
	add := func(v string) { out[strings.ToLower(name)] = append(out[strings.ToLower(name)], v) }
	if x.CanInterface() {
		switch v := x.Interface().(type) {
		case time.Time:
			add(fmt.Sprint(v.UnixNano()))
			return
		case addr.Incarnation:
			add(fmt.Sprintf("%04x%08x", uint16(v.Node), uint32(v.Generation)))
			return
		case []byte:
			add(fmt.Sprintf("%x", v))
			return
		}
	}
	switch x.Kind() {
	case reflect.Struct:
		for i := range x.NumField() {
			flatten(x.Field(i), x.Type().Field(i).Name, out)
		}
	case reflect.Array:
		at := reflect.New(x.Type()).Elem() // addressable, so that it can be sliced
		at.Set(x)
		add(fmt.Sprintf("%x", at.Bytes()))
	case reflect.Slice:
		for i := range x.Len() {
			flatten(x.Index(i), name, out)
		}
	case reflect.String:
		add(x.String())
	case reflect.Bool:
		add(fmt.Sprint(x.Bool()))
	default:
		add(fmt.Sprint(x.Uint()))
	}
}

// The page has the numbers of codes, states, refusals and evidence.
func TestSpecificationHasTheNumbers(t *testing.T) {
	_, page := readGrammar(t)
	if !strings.Contains(page, fmt.Sprintf("| %d | the listener is about to end |", CodeStopped)) ||
		!strings.Contains(page, fmt.Sprintf("| %d | the join token is not accepted |", CodeToken)) ||
		!strings.Contains(page, fmt.Sprintf("| %d | the incarnation that the HELLO names is over |", CodeFenced)) {
		t.Error("codes of REFUSE")
	}
	for s := verdict.Alive; s <= verdict.Removed; s++ {
		if !strings.Contains(page, fmt.Sprintf("| %d | %s |", s, s)) {
			t.Errorf("state %d, %s", s, s)
		}
	}
	for c := verdict.RefusedInvalid; c.String() != "unknown"; c++ {
		if !regexp.MustCompile(fmt.Sprintf(`\| %d \| %s: .*\|`, c, c)).MatchString(page) &&
			!strings.Contains(page, fmt.Sprintf("| %d | %s: ", c, c)) {
			t.Errorf("refusal %d, %s", c, c)
		}
	}
	for _, reason := range []verdict.Reason{verdict.ReasonLeft, verdict.ReasonCrashed, verdict.ReasonSilent,
		verdict.ReasonRestarted, verdict.ReasonPartitioned} {
		if !strings.Contains(page, "`"+string(reason)+"`") {
			t.Errorf("reason %s", reason)
		}
	}
	for e, words := range map[verdict.Evidence]string{verdict.LinkAlive: "the link answered", verdict.LinkSilent: "nothing came",
		verdict.LinkReset: "a stateless reset", verdict.LinkFenced: "the peer's answer", verdict.LinkRefused: "the link ended",
		verdict.EndAnnounced: "alone, the sender"} {
		if !strings.Contains(page, fmt.Sprintf("| %d | %s", e, words)) {
			t.Errorf("evidence %d, %s", e, words)
		}
	}
	if !utf8.ValidString(page) {
		t.Error("not UTF-8")
	}
}

// A proof that is computed from the token's text by SPEC.md alone is redeemed.
func TestSpecificationProvesAToken(t *testing.T) {
	cluster := addr.UUID{1, 15: 2}
	ca := must(trust.NewCA(cluster, time.Now()))
	host := must(trust.NewStore(must(trust.IssueCredentials(ca, trust.Identity{Cluster: cluster, Node: uuidA, Host: true}, time.Now(), time.Hour)), time.Now))
	tokens := trust.NewTokenStore()
	token := must(tokens.Create(cluster, ca.Pin(), trust.TokenOptions{}, time.Now()))

	text, ok := strings.CutPrefix(token.Text(), "fab1-")
	b, err := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding).DecodeString(text)
	if !ok || err != nil || len(b) != 80 {
		t.Fatalf("%d bytes of token, %v", len(b), err)
	}
	id, pin, secret := b[16:24], b[24:56], b[56:76]
	want := sha256.Sum256(append([]byte("fab1-"), b[:76]...))
	if !bytes.Equal(b[:16], cluster[:]) || !bytes.Equal(b[76:], want[:4]) {
		t.Errorf("cluster %x, checksum %x, want %x", b[:16], b[76:], want[:4])
	}
	spki := sha256.Sum256(ca.Certificate().RawSubjectPublicKeyInfo)
	if !bytes.Equal(pin, spki[:]) {
		t.Errorf("pin %x, want %x", pin, spki)
	}

	near, far := handshake(t, token.ClientTLS(time.Now), host.JoinServerTLS())
	exported := must(near.ExportKeyingMaterial("EXPORTER-fabricd-join", id, 32))
	mac := hmac.New(sha256.New, must(hkdf.Key(sha256.New, secret, id, "fabricd join token 1", 32)))
	mac.Write(append([]byte("join\x00"), exported...))
	if _, err := tokens.Redeem(trust.TokenID(id), trust.Proof(mac.Sum(nil)), far, time.Now()); err != nil {
		t.Errorf("the proof of SPEC.md: %v", err)
	}
}

// handshake returns the states of both ends of a TLS connection.
func handshake(t *testing.T, client, server *tls.Config) (near, far tls.ConnectionState) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	listener := tls.Server(b, server)
	done := make(chan error, 1)
	go func() { done <- listener.HandshakeContext(t.Context()) }()
	dialer := tls.Client(a, client)
	if err := dialer.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return dialer.ConnectionState(), listener.ConnectionState()
}

// A statement and a keyring, read by SPEC.md.
func TestSpecificationReadsStatementAndKeyring(t *testing.T) {
	cluster := addr.UUID{1, 15: 2}
	ca := must(trust.NewCA(cluster, time.Now()))
	host := must(trust.NewStore(must(trust.IssueCredentials(ca, trust.Identity{Cluster: cluster, Node: uuidA, Host: true}, time.Now(), time.Hour)), time.Now))
	b := must(host.Sign("lease 1", []byte("message")))
	n := int(binary.BigEndian.Uint16(b[8:]))
	signed, rest := b[:10+n], b[10+n:]
	if since := time.Since(time.Unix(int64(binary.BigEndian.Uint64(b)), 0)); since < 0 || since > time.Minute || string(b[10:10+n]) != "message" {
		t.Errorf("signed %v ago: %q", since, b[10:10+n])
	}
	count, size := int(rest[0]), int(binary.BigEndian.Uint16(rest[1:]))
	leaf, err := x509.ParseCertificate(rest[3 : 3+size])
	if err != nil || count != 1 || leaf.URIs[0].String() != "fabric://"+cluster.String()+"/node/"+uuidA.String()+"/host" {
		t.Fatalf("%d certificates, %v, %v", count, leaf.URIs, err)
	}
	key, ok := leaf.PublicKey.(ed25519.PublicKey)
	covered := append([]byte("fabricd statement 1\x00lease 1\x00"), signed...)
	if !ok || !ed25519.Verify(key, covered, rest[3+size:]) {
		t.Error("the signature does not cover what SPEC.md says")
	}

	ring := trust.NewKeyring()
	ring = must(ring.Install(must(ring.Next())))
	keys := ring.Encode()
	if len(keys) != 2*36 || number(keys[:4]) != uint64(ring.Versions()[0]) || number(keys[36:40]) != uint64(ring.Versions()[1]) ||
		!bytes.Equal(keys[4:36], ring.Keys()[0]) || !bytes.Equal(keys[40:], ring.Keys()[1]) {
		t.Errorf("%d bytes for two keys", len(keys))
	}
}
