package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// runLine runs a command line, and returns the text of its error.
func runLine(t *testing.T, args ...string) string {
	t.Helper()
	a := &app{out: new(bytes.Buffer), err: new(bytes.Buffer), args: args}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	if err == nil {
		t.Fatalf("%v: no error", args)
	}
	if code := exitCode(err); code != exitUsage {
		t.Errorf("%v: exit code %d, %v", args, code, err)
	}
	return err.Error()
}

func TestArgumentsThatAreTooManyOrTooFewAreSaidPlainly(t *testing.T) {
	for _, test := range []struct {
		args []string
		word string
	}{
		{[]string{"submit", "graph.yaml"}, `millrace submit takes flags only, and got "graph.yaml": see ` + "`millrace submit --help`"},
		{[]string{"version", "5"}, "takes flags only"},
		{[]string{"cancel"}, "millrace cancel got 0 arguments: it is written as `millrace cancel "},
		{[]string{"describe", "task"}, "it is written as `millrace describe "},
		{[]string{"wait", "g1", "g2", "g3"}, "millrace wait got 3 arguments"},
		{[]string{"peers", "add"}, "millrace peers add got 0 arguments: it is written as `millrace peers add ADDRESS"},
		{[]string{"peers", "bootstrap", "a", "b"}, "millrace peers bootstrap got 2 arguments"},
	} {
		if text := runLine(t, test.args...); !strings.Contains(text, test.word) {
			t.Errorf("%v: %s", test.args, text)
		}
	}
}

// A file without an end was named by mistake.
func TestFilesThatNeverEndAreNotRead(t *testing.T) {
	for _, args := range [][]string{
		{"--config", "/dev/zero", "config", "show"}, {"--token-file", "/dev/zero", "--address", "127.0.0.1:1", "status"},
	} {
		if text := runLine(t, args...); !strings.Contains(text, "/dev/zero: it has more than") {
			t.Errorf("%v: %s", args, text)
		}
	}
	if _, err := readFile("/dev/zero", 1000, true); err == nil || !strings.Contains(err.Error(), "more than 1000 B") {
		t.Error(err)
	}
}

func TestGraphsThatCannotBeReadAreSaidPlainly(t *testing.T) {
	name := filepath.Join(t.TempDir(), "graph.yaml")
	for text, word := range map[string]string{
		"[]":                        "the file has the form of array, and a mapping is expected",
		"5":                         "the file has the form of number, and a mapping is expected",
		"tasks: {a: 1}":             "tasks has the form of object, and a list is expected",
		"tasks: [{key: [1]}]":       "and a text is expected",
		"tasks: [{key: a, ob: b}]":  `unknown field "ob"`,
		"tasks:\n\t- key: a":        "line 2: found character that cannot start any token",
		"tasks: [{key: a}]\nx: [b]": `unknown field "x"`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readGraph(name)
		if err == nil || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), name+": ") ||
			!strings.Contains(err.Error(), "millrace submit --help") || strings.Contains(err.Error(), "Go ") || strings.Contains(err.Error(), "JSON") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Inputs and items of a file are numbered in the order of their first use; a repeated one has one
// number.
func TestInputsOfFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "graph.yaml")
	text := "tasks: [{key: a, args: [{input: b}, {input: b, item: 3, count: 9}, {input: b, item: 3}, {input: b, count: 1}], kwargs: {z: {input: c}, y: {input: b, item: 0}}}]"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 9 { // in the same order each time
		request, err := readGraph(name)
		if err != nil {
			t.Fatal(err)
		}
		spec := request.GetTasks()[0]
		items := fmt.Sprint(len(spec.GetItems()))
		for _, it := range spec.GetItems() {
			items += fmt.Sprintf(" %d:%d/%d", it.GetInput(), it.GetItem(), it.GetCount())
		}
		args := spec.GetArguments().GetPositional()
		if got := fmt.Sprintln(spec.GetInputs(), items, args[1].GetInput(), args[2].GetInput(), args[3].GetMapValue() != nil); got != "[b b b c] 2 1:3/9 2:0/0 1 1 true\n" {
			t.Fatal(got)
		}
	}
}

func TestImpossibleItemsOfFiles(t *testing.T) {
	for _, v := range []map[string]any{
		{"input": "b", "item": -1.0}, {"input": "b", "item": "first"}, {"input": "b", "item": 0.5}, {"input": "b", "item": 1.0, "count": 1e9},
	} {
		if _, err := value(v, new(millracev1.TaskSpec)); err == nil || !strings.Contains(err.Error(), "of input b: ") || !strings.Contains(err.Error(), "is no whole number") {
			t.Errorf("%v: %v", v, err)
		}
	}
}
