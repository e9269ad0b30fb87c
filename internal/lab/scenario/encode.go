package scenario

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Encode writes a scenario as YAML that [Decode] reads back as the same value:
// the keys of the top one a line, every step and expectation one line.
func Encode(s *Scenario) []byte {
	var b strings.Builder
	v := reflect.ValueOf(s).Elem()
	for _, f := range fieldsOf(v.Type()) {
		x := v.FieldByIndex(f.index)
		if isEmpty(x) {
			continue
		}
		if x.Kind() != reflect.Slice || x.Type().Elem().Kind() != reflect.Struct || f.key == "select" {
			fmt.Fprintf(&b, "%s: %s\n", f.key, flow(x))
			continue
		}
		fmt.Fprintf(&b, "%s:\n", f.key)
		for i := range x.Len() {
			fmt.Fprintf(&b, "  - %s\n", flow(x.Index(i)))
		}
	}
	return []byte(b.String())
}

// Line returns a step or an expectation as [Encode] writes it, on one line:
// {removed: {node: 2}}.
func Line[T Step | Expect](v *T) string { return flow(reflect.ValueOf(v).Elem()) }

// flow returns a value in the flow style: {at: 3s, node: {id: 2, do: kill}}.
func flow(v reflect.Value) string {
	if text, ok := word(v); ok {
		return text
	}
	switch v.Kind() {
	case reflect.Pointer:
		return flow(v.Elem())
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[[]Selection]() {
			return flowSelections(v.Interface().([]Selection))
		}
		items := make([]string, v.Len())
		for i := range items {
			items[i] = flow(v.Index(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	var entries []string
	for _, f := range fieldsOf(v.Type()) {
		if x := v.FieldByIndex(f.index); !isEmpty(x) || f.need {
			entries = append(entries, f.key+": "+flow(x))
		}
	}
	return "{" + strings.Join(entries, ", ") + "}"
}

func flowSelections(all []Selection) string {
	entries := make([]string, len(all))
	for i, s := range all {
		entries[i] = string(s.Name) + ": " + flow(reflect.ValueOf(s))
	}
	return "{" + strings.Join(entries, ", ") + "}"
}

// word returns the text of a value that is one word, or has a form of its own.
func word(v reflect.Value) (string, bool) {
	switch x := v.Interface().(type) {
	case NodeSet:
		return x.String(), true
	case Groups:
		all := make([]string, len(x))
		for i, g := range x {
			all[i] = g.String()
			if len(g) == 1 && g[0].Name == "" {
				all[i] = "[" + all[i] + "]"
			}
		}
		return "[" + strings.Join(all, ", ") + "]", true
	case Pairs:
		if x.Shape != "" {
			return x.Shape, true
		}
		all := make([]string, len(x.List))
		for i, p := range x.List {
			all[i] = fmt.Sprintf("[%d, %d]", p[0], p[1])
		}
		return "[" + strings.Join(all, ", ") + "]", true
	case Text:
		return strconv.Quote(string(x)), true
	case fmt.Stringer:
		return x.String(), true
	}
	switch v.Kind() {
	case reflect.String:
		return v.String(), true
	case reflect.Int:
		return strconv.FormatInt(v.Int(), 10), true
	case reflect.Bool:
		return strconv.FormatBool(v.Bool()), true
	}
	return "", false
}

// isEmpty reports whether a value is that of a key that is left out.
func isEmpty(v reflect.Value) bool { return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 }
