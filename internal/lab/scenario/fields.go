package scenario

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fabricd/fabricd/internal/yamlbound"
)

// A field is one key of a mapping: a field of a Go type, and its tags.
type field struct {
	key      string
	index    []int
	typ      reflect.Type
	need     bool
	others   bool // a set of nodes may name [SetOthers]
	bounded  bool
	min, max int64
	doc      string
}

var fieldCache sync.Map // reflect.Type → []field

// fieldsOf returns the keys of a mapping in the order of the type.
func fieldsOf(t reflect.Type) []field {
	if f, ok := fieldCache.Load(t); ok {
		return f.([]field)
	}
	var all []field
	for i := range t.NumField() {
		f := t.Field(i)
		switch tag := f.Tag.Get("yaml"); tag {
		case "-", "":
		case ",inline":
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				all = append(all, inner)
			}
		default:
			all = append(all, newField(f, tag))
		}
	}
	fieldCache.Store(t, all)
	return all
}

func newField(f reflect.StructField, key string) field {
	out := field{key: key, index: f.Index, typ: f.Type, need: f.Tag.Get("need") == "true", others: f.Tag.Get("may") == "others", doc: f.Tag.Get("doc")}
	if from, to, ok := strings.Cut(f.Tag.Get("range"), ".."); ok {
		out.bounded = true
		out.min, _ = strconv.ParseInt(from, 10, 64) // the tags are checked by a test
		out.max, _ = strconv.ParseInt(to, 10, 64)
	}
	return out
}

// inRange reports whether an integer is within the bounds of its field.
func (f field) inRange(v reflect.Value) bool {
	return !f.bounded || !v.CanInt() || v.Int() >= f.min && v.Int() <= f.max
}

// describe returns the allowed values of a scalar.
func describe(t reflect.Type, s scalar, f field) string {
	switch {
	case s != nil && f.bounded:
		return fmt.Sprintf("%s, from %d to %d", s.allowed(), f.min, f.max)
	case s != nil:
		return s.allowed()
	case t.Kind() == reflect.Int && f.bounded && f.min == f.max:
		return fmt.Sprintf("want %d", f.min)
	case t.Kind() == reflect.Int:
		return fmt.Sprintf("want a whole number from %d to %d", f.min, f.max)
	case t.Kind() == reflect.Bool:
		return "want true or false"
	}
	return "want one of " + strings.Join(words[t], ", ")
}

// keysOf lists the keys of a mapping for a message.
func keysOf(t reflect.Type) string {
	var keys []string
	for _, f := range fieldsOf(t) {
		keys = append(keys, f.key)
	}
	return strings.Join(keys, ", ")
}

// didYouMean returns a hint at the key that was meant.
func didYouMean(key string, fields []field) string {
	var keys []string
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	if meant := yamlbound.Nearest(strings.ReplaceAll(strings.ToLower(key), "-", "_"), keys); meant != "" {
		return "; did you mean " + meant + "?"
	}
	return ""
}

// setFields returns the keys of a union that are set.
func setFields(v reflect.Value) []string {
	var set []string
	for _, f := range fieldsOf(v.Type()) {
		if x := v.FieldByIndex(f.index); x.Kind() == reflect.Pointer && !x.IsNil() {
			set = append(set, f.key)
		}
	}
	slices.Sort(set)
	return set
}
