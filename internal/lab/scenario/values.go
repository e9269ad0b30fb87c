package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A scalar is a value that the file writes as one word.
type scalar interface {
	// parse sets the value from text; false: text is none.
	parse(text string) bool
	// allowed describes the input of parse as readable text.
	allowed() string
	// String returns the text that parse takes and that gives the same value.
	String() string
}

// Hour is 60 minutes.
const Hour = Duration(time.Hour)

// A Duration is a time in nanoseconds, 0 … [MaxDuration]: "1m30s", "20ms".
type Duration time.Duration

func (d *Duration) parse(text string) bool {
	v, err := time.ParseDuration(text)
	*d = Duration(v)
	return err == nil && v >= 0 && Duration(v) <= MaxDuration && startsWithDigit(text)
}

func (*Duration) allowed() string { return "want a duration from 0s to 24h, as 20ms or 1m30s" }

// String returns the shortest form: "1m30s", "20ms", "0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// startsWithDigit refuses signs, spaces and ".5s".
func startsWithDigit(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// An Offset is a time of either sign, up to ten years: of a clock.
type Offset time.Duration

const maxOffset = 10 * 365 * 24 * time.Hour

func (o *Offset) parse(text string) bool {
	v, err := time.ParseDuration(text)
	*o = Offset(v)
	return err == nil && v.Abs() <= maxOffset && startsWithDigit(strings.TrimLeft(text, "+-"))
}

func (*Offset) allowed() string { return "want a duration of either sign up to 87600h, as 1h or -24h" }

func (o Offset) String() string { return time.Duration(o).String() }

// A Span is a time, "3s", or a range from which one is drawn, "3s..4s". The
// zero Span is none.
type Span struct {
	From, To Duration // From <= To
	Set      bool     // it is in the file
}

// At returns the span that is one time.
func At(d Duration) Span { return Span{From: d, To: d, Set: true} }

func (s *Span) parse(text string) bool {
	s.Set = true
	return parseRange(text, &s.From, &s.To) && s.From <= s.To
}

// parseRange parses a value, which is both ends, or a range of them, "3s..4s".
func parseRange(text string, from, to scalar) bool {
	low, high, isRange := strings.Cut(text, "..")
	if !isRange {
		high = low
	}
	return from.parse(low) && to.parse(high)
}

// rangeText is the text that parseRange takes.
func rangeText(from, to fmt.Stringer) string {
	if from == to {
		return from.String()
	}
	return from.String() + ".." + to.String()
}

func (*Span) allowed() string {
	return "want a duration from 0s to 24h, as 3s, or a range, as 3s..4s"
}

func (s Span) String() string { return rangeText(s.From, s.To) }

// Fixed reports whether nothing of the span is left to draw.
func (s Span) Fixed() bool { return s.From == s.To }

// A Percent is 0 … 100: "20%", "0.5%".
type Percent float64

func (p *Percent) parse(text string) bool {
	number, ok := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(number, 64)
	*p = Percent(v)
	return ok && err == nil && v >= 0 && v <= 100 && plainNumber(number)
}

func (*Percent) allowed() string { return "want a percentage from 0% to 100%, as 20% or 0.5%" }

func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

// plainNumber refuses the input of package strconv beside digits and a point.
func plainNumber(s string) bool {
	return len(s) <= 32 && startsWithDigit(s) && strings.Trim(s, "0123456789.") == "" && s[len(s)-1] != '.'
}

// A Size is a number of bytes, up to 1 TiB: "64", "64KiB", "1MB".
type Size int64

const maxSize = 1 << 40

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}}

func (z *Size) parse(text string) bool {
	number, unit := text, int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			number, unit = rest, u.bytes
			break
		}
	}
	v, err := strconv.ParseInt(number, 10, 64)
	*z = Size(v * unit)
	return err == nil && plainNumber(number) && v <= maxSize/unit
}

func (*Size) allowed() string { return "want a number of bytes up to 1024GiB, as 64, 64KiB or 1MB" }

func (z Size) String() string {
	for _, u := range sizeUnits[:3] {
		if v := int64(z) / u.bytes; int64(z)%u.bytes == 0 && v > 0 && v < 1024 {
			return strconv.FormatInt(v, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(z), 10)
}

// A SizeRange is a size, or a range from which each is drawn: "64..4096". Both
// ends may be drawn.
type SizeRange struct{ From, To Size }

func (r *SizeRange) parse(text string) bool {
	return parseRange(text, &r.From, &r.To) && r.From >= 1 && r.From <= r.To && r.To <= 64<<20
}

func (*SizeRange) allowed() string { return "want a size from 1 to 64MiB, or a range, as 64..4096" }

func (r SizeRange) String() string { return rangeText(r.From, r.To) }

// A Rate is bytes a second, 1 kB/s … 1 TiB/s: "8Mbit/s", "1MB/s".
type Rate int64

var rateUnits = []struct {
	name  string
	bytes float64
}{{"Gbit/s", 1e9 / 8}, {"Mbit/s", 1e6 / 8}, {"kbit/s", 1e3 / 8}, {"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}, {"B/s", 1}}

func (r *Rate) parse(text string) bool {
	for _, u := range rateUnits {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(number, 64)
		*r = Rate(v * u.bytes)
		return err == nil && plainNumber(number) && v*u.bytes >= 1000 && v*u.bytes <= maxSize
	}
	return false
}

func (*Rate) allowed() string { return "want a rate from 1kB/s to 1024GB/s, as 8Mbit/s or 1MB/s" }

func (r Rate) String() string {
	for _, u := range rateUnits {
		if v := float64(r) / u.bytes; v >= 1 && v == math.Trunc(v) {
			return strconv.FormatFloat(v, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatInt(int64(r), 10) + "B/s"
}

// A Name is a word of letters, digits, '-' and '_', up to [MaxName] bytes.
type Name string

func (n *Name) parse(text string) bool {
	*n = Name(text)
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	return text != "" && len(text) <= MaxName && strings.Trim(text, letters+"0123456789-_") == "" &&
		strings.ContainsRune(letters, rune(text[0]))
}

func (*Name) allowed() string {
	return fmt.Sprintf("want a letter and then letters, digits, - and _, up to %d in all", MaxName)
}

func (n Name) String() string { return string(n) }

// A Text is a line for people, up to [MaxAbout] bytes.
type Text string

func (t *Text) parse(text string) bool {
	*t = Text(text)
	return text != "" && len(text) <= MaxAbout && !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' })
}

func (*Text) allowed() string { return fmt.Sprintf("want one line of text, up to %d bytes", MaxAbout) }

func (t Text) String() string { return string(t) }
