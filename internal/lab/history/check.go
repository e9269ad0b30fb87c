package history

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// MaxText bounds every text of a record, in bytes.
const MaxText = 4096

// MaxList bounds every list of a record.
const MaxList = 1 << 14

// words are the values of the types that have a fixed list of them.
var words = map[reflect.Type][]string{
	reflect.TypeFor[Harm]():      {string(HarmNone), string(HarmReset), string(HarmRemove)},
	reflect.TypeFor[Side]():      {string(Client), string(Server)},
	reflect.TypeFor[Phase]():     {string(PhaseBaseline), string(PhaseEnd)},
	reflect.TypeFor[EventKind](): {string(EventAdded), string(EventRemoved), string(EventSelf), string(EventReset), string(EventHost)},
	reflect.TypeFor[Did](): {string(DidStart), string(DidKill), string(DidTerminate), string(DidStop), string(DidContinue),
		string(DidExit), string(DidCrash)},
}

func bad(field string, value any, format string, args ...any) error {
	return fmt.Errorf("%s: %v: want %s", field, value, fmt.Sprintf(format, args...))
}

// check reports the first field of a mapping that is out of its range. Texts and lists have
// their bounds, numbers are not negative, lists of numbers are nodes, and a word is one of
// its type's or of its tag of, or empty where it may be left out. The tag least is the least
// number, or the least length of a text. What has a text form of its own checks itself.
func check(v reflect.Value) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			if err := check(v.Field(i)); err != nil {
				return err
			}
			continue
		}
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if err := checkField(name, rest != "", v.Field(i), f.Tag); err != nil {
			return err
		}
	}
	if s, ok := v.Interface().(interface{ sense() error }); ok {
		return s.sense()
	}
	return nil
}

func checkField(name string, optional bool, v reflect.Value, tag reflect.StructTag) error {
	if _, own := v.Interface().(encoding.TextMarshaler); own {
		return nil
	}
	least, _ := strconv.ParseInt(tag.Get("least"), 10, 64) // 0 without the tag
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return checkField(name, optional, v.Elem(), tag)
	case reflect.String:
		return checkText(name, optional, v, tag.Get("of"), int(least))
	case reflect.Int, reflect.Int64:
		if v.Int() < least {
			return bad(name, v.Int(), "at least %d", least)
		}
	case reflect.Uint64:
		if v.Uint() < uint64(max(least, 0)) {
			return bad(name, v.Uint(), "at least %d", least)
		}
	case reflect.Slice:
		return checkList(name, v)
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if n := v.MapIndex(key).Int(); n < 0 || !slices.Contains(ResourceNames, key.String()) {
				return bad(name, fmt.Sprintf("%q: %d", key, n), "at least 0 of %v", ResourceNames)
			}
		}
	}
	return nil
}

func checkText(name string, optional bool, v reflect.Value, of string, least int) error {
	allowed := words[v.Type()]
	if of != "" {
		allowed = strings.Fields(of)
	}
	switch n := v.Len(); {
	case n < least || n > MaxText:
		return bad(name, fmt.Sprintf("%d bytes", n), "%d to %d", least, MaxText)
	case allowed != nil && !slices.Contains(allowed, v.String()) && !(optional && n == 0):
		return bad(name, strconv.Quote(v.String()), "one of %v", allowed)
	}
	return nil
}

func checkList(name string, v reflect.Value) error {
	if v.Len() > MaxList {
		return bad(name, v.Len(), "at most %d", MaxList)
	}
	for i := range v.Len() {
		e := v.Index(i)
		switch e.Kind() {
		case reflect.Int:
			if e.Int() < 0 || e.Int() > MaxNode {
				return bad(name, e.Int(), "nodes 0…%d", MaxNode)
			}
		case reflect.Struct:
			if err := check(e); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		default:
			if err := checkField(name, false, e, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// The methods named sense check what fields say together.

func (b Begin) sense() error {
	switch {
	case b.Version != Version:
		return bad("version", b.Version, "%d", Version)
	case b.Nodes > MaxNode+1:
		return bad("nodes", b.Nodes, "1…%d", MaxNode+1)
	case len(b.Names) > b.Nodes:
		return bad("names", len(b.Names), "at most one for each node")
	}
	return nil
}

func (b Event) sense() error {
	if b.What != EventHost && b.Subject.Generation == 0 {
		return bad("subject", b.Subject, "an incarnation, of a generation above 0")
	}
	return nil
}

func (r Range) sense() error {
	if r.To < r.From {
		return bad("from", fmt.Sprintf("[%d, %d)", r.From, r.To), "0 <= from <= to")
	}
	return nil
}

func (b Paths) sense() error {
	if b.New > b.Paths || b.Paths > b.Conns {
		return bad("paths", b.Paths, "at least as many as are new, and at most as many as there are connections")
	}
	return nil
}
