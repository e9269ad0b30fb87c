package scenario

import (
	"fmt"
	"reflect"
	"strings"
)

// Reference returns the keys of the format as Markdown tables, one for each
// mapping, made from the types that [Decode] fills.
func Reference() string {
	var b strings.Builder
	done := map[reflect.Type]bool{}
	var write func(title string, t reflect.Type)
	write = func(title string, t reflect.Type) {
		if done[t] {
			return
		}
		done[t] = true
		fmt.Fprintf(&b, "#### %s\n\n| key | value | meaning |\n|---|---|---|\n", title)
		type inner struct {
			title string
			typ   reflect.Type
		}
		var inners []inner
		for _, f := range fieldsOf(t) {
			need := ""
			if f.need {
				need = " (needed)"
			}
			kind, below := referenceOf(f)
			fmt.Fprintf(&b, "| `%s`%s | %s | %s |\n", f.key, need, kind, f.doc)
			if below != nil {
				inners = append(inners, inner{strings.TrimPrefix(title+"."+f.key, "The file."), below})
			}
		}
		b.WriteString("\n")
		for _, i := range inners {
			write(i.title, i.typ)
		}
	}
	write("The file", reflect.TypeFor[Scenario]())
	return b.String()
}

// referenceOf returns the kind of a key's value, and its mapping, if it is one or a
// list of one.
func referenceOf(f field) (kind string, below reflect.Type) {
	t := f.typ
	switch t {
	case reflect.TypeFor[NodeSet]():
		return "nodes", nil
	case reflect.TypeFor[Groups]():
		return "list of nodes", nil
	case reflect.TypeFor[Pairs]():
		return "`none`, `mesh`, `ring`, `star`, or pairs", nil
	case reflect.TypeFor[[]Selection]():
		return "mapping from names", reflect.TypeFor[Selection]()
	case reflect.TypeFor[StepName]():
		return "a step", nil
	}
	list := ""
	if t.Kind() == reflect.Slice {
		list, t = "list of ", t.Elem()
	}
	if s, ok := reflect.New(t).Interface().(scalar); ok {
		text := strings.TrimPrefix(s.allowed(), "want ")
		if f.bounded {
			text += fmt.Sprintf(", %d to %d", f.min, f.max)
		}
		return list + text, nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return list + "mapping", t.Elem()
	case reflect.Struct:
		return list + "mapping", t
	case reflect.Bool:
		return "`true` or `false`", nil
	case reflect.Int:
		return fmt.Sprintf("number, %d to %d", f.min, f.max), nil
	}
	return list + "`" + strings.Join(words[t], "`, `") + "`", nil
}
