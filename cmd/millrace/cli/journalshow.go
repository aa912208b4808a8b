package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/sched"
)

func (a *app) journalShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show DIR", Short: "Print the records of a journal", Args: exactly(1), ValidArgsFunction: oneDirectory,
		Long: `Prints the records of a journal in order, one on each line: its time, its batch, its kind and its fields. The rows of the
snapshot come first, with batches like s1: they take the place of the older log. Fields that are zero
are left out. Arguments, functions and values are shown by their sizes only, and --json lists all that a line only counts.
Keys, names and messages of errors are shown as they are. Records before a damage are shown, and then the exit code is 1.`,
		RunE: func(_ *cobra.Command, args []string) error {
			s := a.settings
			graph, err := numberFlag(s.String("graph"), "graph", 'g')
			if err != nil {
				return err
			}
			client, err := numberFlag(s.String("client"), "client", 'c')
			if err != nil {
				return err
			}
			chosen := filter{graph: ids.GraphID(graph), client: ids.ClientID(client)}
			files, live, err := readJournal(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = files.Close() }() // It was only read.
			show, end := a.showLine, func() error { return nil }
			if s.Bool("json") {
				show, end = a.showJSON()
			}
			report, err := journal.Examine(files, live, func(e journal.Entry) error {
				if !chosen.has(e.Record) {
					return nil
				}
				return show(e)
			})
			if ended := end(); err == nil {
				err = ended
			}
			if err != nil {
				return err
			}
			return soundness(args[0], report)
		},
	}
	f := cmd.Flags()
	f.String("graph", "", "only records of this graph and of the tasks that it made, like g1; empty: all")
	f.String("client", "", "only records that name this client, like c1; empty: all")
	f.Bool("json", false, "one JSON object, with all fields")
	for _, flag := range []string{"graph", "client"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions) // It fails only for flags that the command does not have.
	}
	return cmd
}

// numberFlag returns the number that a flag names, with or without a letter; 0: the flag is empty.
func numberFlag(text, flag string, letter byte) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	n, ok := number(text, letter)
	if !ok {
		return 0, usageError{fmt.Errorf("--%s: %q is no number, like %c1", flag, text, letter)}
	}
	return n, nil
}

func (a *app) showLine(e journal.Entry) error {
	kind, fields := kindOf(e.Record), fieldsOf(reflect.ValueOf(e.Record), true)
	var line strings.Builder
	batch := strconv.FormatUint(e.Batch, 10)
	if e.Snapshot {
		batch = "s" + batch
	}
	fmt.Fprintf(&line, "%s  %s  %s", e.At.UTC().Format("2006-01-02T15:04:05.000Z"), batch, kind)
	for _, f := range fields {
		fmt.Fprintf(&line, " %s=%s", f.name, f.line())
	}
	_, err := fmt.Fprintln(a.out, plain(line.String()))
	return err
}

// showJSON returns functions that print records as a list in an object, and end that.
func (a *app) showJSON() (show func(journal.Entry) error, end func() error) {
	before := "{\"records\": ["
	show = func(e journal.Entry) error {
		object := objectOf(fieldsOf(reflect.ValueOf(e.Record), false))
		object["time"], object["batch"], object["file"], object["offset"], object["kind"] = e.At.UTC(), e.Batch, e.File, e.Offset, kindOf(e.Record)
		text, err := json.Marshal(object)
		if err == nil {
			_, err = fmt.Fprintf(a.out, "%s\n%s", before, text)
		}
		before = ","
		return err
	}
	end = func() error {
		if before != "," {
			_, err := fmt.Fprintln(a.out, before+"]}")
			return err
		}
		_, err := fmt.Fprintln(a.out, "\n]}")
		return err
	}
	return show, end
}

// kindOf is the name of a record's type: HoldsPut is holds_put.
func kindOf(r journal.Record) string { return snake(reflect.TypeOf(r).Elem().Name()) }

func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// field is a field of a record. Its value is a text, a number, a flag, a count, a list of values, a
// map, or a list of fields.
type field struct {
	name  string
	value any
}

// count is the size of something that is not shown.
type count struct {
	n    int
	unit string
}

func (c count) String() string               { return fmt.Sprintf("(%d %s)", c.n, c.unit) }
func (c count) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]int{c.unit: c.n}) }

// unseen are fields with output of tasks, and with what a client adds to an error.
var unseen = map[string]bool{"LogTail": true, "Detail": true, "DetailBytes": true}

// fieldsOf lists the fields of a struct that are not zero. briefly counts the structs of a list.
func fieldsOf(v reflect.Value, briefly bool) (fields []field) {
	v = reflect.Indirect(v)
	for i := range v.NumField() {
		f, x := v.Type().Field(i), v.Field(i)
		if !f.IsExported() || x.IsZero() || unseen[f.Name] {
			continue
		}
		_, text := x.Interface().(fmt.Stringer)
		if reflect.Indirect(x).Kind() == reflect.Struct && !text && (f.Anonymous || briefly) {
			fields = append(fields, fieldsOf(x, briefly)...)
			continue
		}
		fields = append(fields, field{snake(f.Name), valueOf(x, briefly)})
	}
	return fields
}

// itemsInLine bounds the elements of a list in a line.
const itemsInLine = 8

func valueOf(x reflect.Value, briefly bool) any {
	if s, ok := x.Interface().(fmt.Stringer); ok {
		return s.String()
	}
	switch x.Kind() {
	case reflect.Pointer:
		return valueOf(x.Elem(), briefly)
	case reflect.Interface:
		return append([]field{{"kind", snake(x.Elem().Type().Name())}}, fieldsOf(x.Elem(), briefly)...)
	case reflect.Struct:
		return fieldsOf(x, briefly)
	case reflect.Slice:
		if x.Type().Elem().Kind() == reflect.Uint8 {
			return count{x.Len(), "bytes"}
		}
		if briefly && (x.Len() > itemsInLine || x.Type().Elem().Kind() == reflect.Struct) {
			return count{x.Len(), "items"}
		}
		list := make([]any, x.Len())
		for i := range list {
			list[i] = valueOf(x.Index(i), briefly)
		}
		return list
	case reflect.Map:
		object := map[string]any{}
		for _, key := range x.MapKeys() {
			object[fmt.Sprint(key.Interface())] = valueOf(x.MapIndex(key), briefly)
		}
		return object
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16,
		reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return x.Interface()
	default:
		return count{1, x.Kind().String()}
	}
}

// line is the value as a part of a line.
func (f field) line() string { return lineOf(f.value) }

func lineOf(value any) string {
	switch v := value.(type) {
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = lineOf(v[i])
		}
		return "[" + strings.Join(texts, " ") + "]"
	case []field:
		texts := make([]string, len(v))
		for i, f := range v {
			texts[i] = f.name + "=" + f.line()
		}
		return "{" + strings.Join(texts, " ") + "}"
	case map[string]any:
		texts := []string{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			texts = append(texts, key+"="+lineOf(v[key]))
		}
		return "{" + strings.Join(texts, " ") + "}"
	case string:
		if v == "" || strings.ContainsFunc(v, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("\"=[]{}", r) }) {
			return strconv.Quote(v)
		}
		return v
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	}
	return fmt.Sprint(value)
}

// objectOf makes JSON objects of fields.
func objectOf(fields []field) map[string]any {
	object := map[string]any{}
	for _, f := range fields {
		object[f.name] = jsonOf(f.value)
	}
	return object
}

func jsonOf(value any) any {
	switch v := value.(type) {
	case []field:
		return objectOf(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = jsonOf(v[i])
		}
		return list
	}
	return value
}

// filter chooses records. Its zero value chooses all.
type filter struct {
	graph  ids.GraphID
	client ids.ClientID
	// made are the tasks of the graph: their first number, and the one behind the last.
	made [][2]ids.TaskID
}

func (f *filter) has(r journal.Record) bool {
	if put, ok := r.(*sched.TasksPut); ok && f.graph != 0 && put.Graph == f.graph {
		for i := range put.Tasks {
			id := put.Tasks[i].Task
			if n := len(f.made); n > 0 && f.made[n-1][1] == id {
				f.made[n-1][1]++
			} else {
				f.made = append(f.made, [2]ids.TaskID{id, id + 1})
			}
		}
	}
	v := reflect.ValueOf(r).Elem()
	graph := f.graph == 0 || names(v, func(x any) bool {
		switch id := x.(type) {
		case ids.GraphID:
			return id == f.graph
		case ids.TaskID:
			return slices.ContainsFunc(f.made, func(m [2]ids.TaskID) bool { return m[0] <= id && id < m[1] })
		}
		return false
	})
	return graph && (f.client == 0 || names(v, func(x any) bool { return x == f.client }))
}

// names reports whether a number within a value is one of those that are sought.
func names(v reflect.Value, sought func(any) bool) bool {
	switch v.Kind() {
	case reflect.Struct:
		if h, is := v.Interface().(sched.Holder); is {
			return h.Kind == sched.HolderClient && sought(ids.ClientID(h.Number)) || h.Kind == sched.HolderGraph && sought(ids.GraphID(h.Number))
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && names(v.Field(i), sought) {
				return true
			}
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k != reflect.Struct && k != reflect.Uint64 {
			return false
		}
		for i := range v.Len() {
			if names(v.Index(i), sought) {
				return true
			}
		}
	case reflect.Uint64:
		return sought(v.Interface())
	}
	return false
}
