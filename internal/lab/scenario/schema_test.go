package scenario

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// SchemaID names the schema.
const SchemaID = "https://github.com/fabricd/fabricd/deploy/scenarios/schema.json"

// Schema returns the format as a JSON Schema (2020-12), for editors. It is made
// from the types that [Decode] fills; Decode checks more than a schema can say.
func Schema() []byte {
	root := mappingSchema(reflect.TypeFor[Scenario]())
	root = append([]entry{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"$id", SchemaID},
		{"title", "fabricd scenario"},
		{"description", "What to break in a cluster, and what must hold. Run it with: fabricd chaos run FILE"},
	}, root...)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(object(root)); err != nil {
		panic("BUG: the schema cannot be encoded: " + err.Error())
	}
	return b.Bytes()
}

// An entry is one member of a JSON object whose order counts for people.
type entry struct {
	key   string
	value any
}

// An object is a JSON object with its members in order.
type object []entry

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, _ := json.Marshal(e.key) // a string
		b.Write(key)
		b.WriteByte(':')
		if err := encodeTo(&b, e.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func encodeTo(b *bytes.Buffer, v any) error {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// mappingSchema is the schema of a mapping.
func mappingSchema(t reflect.Type) object {
	var properties object
	var required []string
	for _, f := range fieldsOf(t) {
		properties = append(properties, entry{f.key, append(valueSchema(f.typ, f), entry{"description", f.doc})})
		if f.need {
			required = append(required, f.key)
		}
	}
	o := object{{"type", "object"}, {"additionalProperties", false}}
	if required != nil {
		o = append(o, entry{"required", required})
	}
	if t == reflect.TypeFor[Expect]() {
		o = append(o, entry{"minProperties", 1}, entry{"maxProperties", 1})
	}
	return append(o, entry{"properties", properties})
}

// valueSchema is the schema of a value.
func valueSchema(t reflect.Type, f field) object {
	switch t {
	case reflect.TypeFor[NodeSet]():
		return nodesSchema()
	case reflect.TypeFor[Groups]():
		return object{{"type", "array"}, {"minItems", 2}, {"items", nodesSchema()}}
	case reflect.TypeFor[Pairs]():
		node := object{{"anyOf", []object{numberSchema(), nameSchema()}}}
		pair := object{{"type", "array"}, {"minItems", 2}, {"maxItems", 2}, {"items", node}}
		return object{{"anyOf", []object{{{"enum", pairShapes}}, {{"type", "array"}, {"items", pair}}}}}
	case reflect.TypeFor[[]Selection]():
		return object{{"type", "object"}, {"additionalProperties", mappingSchema(reflect.TypeFor[Selection]())}}
	}
	if s, ok := reflect.New(t).Interface().(scalar); ok {
		return object{{"type", []string{"string", "integer", "number"}}, {"pattern", s.(patterned).pattern()}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return mappingSchema(t.Elem())
	case reflect.Slice:
		return object{{"type", "array"}, {"maxItems", MaxSteps}, {"items", valueSchema(t.Elem(), field{})}}
	case reflect.Struct:
		return mappingSchema(t)
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.String:
		return object{{"enum", words[t]}}
	case reflect.Int:
		return object{{"type", "integer"}, {"minimum", f.min}, {"maximum", f.max}}
	}
	panic(fmt.Sprintf("BUG: no schema for %s", t))
}

// numberSchema and nameSchema are a node's number and its node's name.
func numberSchema() object {
	return object{{"type", "integer"}, {"minimum", 0}, {"maximum", MaxNodes - 1}}
}

func nameSchema() object {
	return object{{"type", "string"}, {"pattern", new(Name).pattern()}}
}

func nodesSchema() object {
	one := object{{"anyOf", []object{
		numberSchema(),
		{{"enum", setNames}},
		nameSchema(),
		{{"type", "string"}, {"pattern", `^\$[A-Za-z][-A-Za-z0-9_]{0,63}$`}},
	}}}
	return object{{"anyOf", []any{one, object{{"type", "array"}, {"minItems", 1}, {"items", one}}}}}
}

// A patterned is a scalar whose pattern is the input of parse as a regular expression, roughly:
// parse refuses every text that the pattern refuses.
type patterned interface{ pattern() string }

func (*Duration) pattern() string  { return `^0$|^([0-9.]+(ns|us|µs|μs|ms|s|m|h))+$` }
func (*Offset) pattern() string    { return `^[+-]?([0-9.]+(ns|us|µs|μs|ms|s|m|h))+$|^0$` }
func (*Span) pattern() string      { return `^[0-9][0-9.a-zµμ]*$` }
func (*Percent) pattern() string   { return `^[0-9]+(\.[0-9]+)?%$` }
func (*Size) pattern() string      { return `^[0-9]+(KiB|MiB|GiB|kB|KB|MB|GB|B)?$` }
func (*SizeRange) pattern() string { return `^[0-9][0-9.KMGiBk]*$` }
func (*Rate) pattern() string      { return `^[0-9]+(\.[0-9]+)?([GMk]bit|[GMk]?B)/s$` }
func (*Name) pattern() string      { return `^[A-Za-z][-A-Za-z0-9_]{0,63}$` }
func (*Text) pattern() string      { return `^[^\x00-\x1f]+$` }
func (*StepName) pattern() string  { return `^[a-z]+\.[a-z_]+$` }
