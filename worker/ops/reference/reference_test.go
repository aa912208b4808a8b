package reference_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/millrace/millrace/worker/ops"
	"github.com/millrace/millrace/worker/ops/opstest"
	"github.com/millrace/millrace/worker/ops/reference"
)

// registered returns all operations of the registry.
func registered(t *testing.T) []*ops.Op {
	t.Helper()
	registry := ops.NewRegistry(ops.CUDAKernel())
	var all []*ops.Op
	for _, name := range registry.Names() {
		op, err := registry.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, op)
	}
	return all
}

var knownLibraries = []string{"nvrtc", "cublas", "cusolver", "cufft"}

// lacks returns what the description of an operation lacks.
func lacks(op *ops.Op) (missing []string) {
	rule := func(bad bool, what string) {
		if bad {
			missing = append(missing, what)
		}
	}
	// phrase reports whether a text is a part of a sentence; the page adds the full stop.
	phrase := func(s string) bool { return s != "" && !strings.HasSuffix(s, ".") || strings.HasSuffix(s, "...") }
	rule(!strings.HasSuffix(op.Doc, ".") || strings.Contains(op.Doc, ". "), "Doc is one sentence")
	rule(op.Details != "" && !strings.HasSuffix(op.Details, "."), "Details are sentences")
	for _, p := range op.Params {
		rule(!phrase(p.Doc), "Doc of "+p.Name)
		rule(!slices.ContainsFunc(ops.Types(), func(d ops.TypeDoc) bool { return d.Type == p.Type && d.Doc != "" }), "Types has the type "+string(p.Type))
	}
	rule((op.Variadic != "") != phrase(op.VariadicDoc), "VariadicDoc")
	rule(op.Open != phrase(op.OpenDoc), "OpenDoc")
	rule(!phrase(op.Result), "Result")
	for _, e := range op.Errors {
		rule(!phrase(e), "Errors are parts of sentences")
	}
	for _, l := range op.Libraries {
		rule(!slices.Contains(knownLibraries, l), "library "+l)
	}
	rule(len(op.Example.Tasks) == 0, "Example")
	for _, text := range append([]string{op.Doc, op.Details, op.Result, op.VariadicDoc, op.OpenDoc}, op.Errors...) {
		rule(strings.Count(text, "`")%2 != 0, "a pair of `")
	}
	return missing
}

func TestEveryOperationIsDescribed(t *testing.T) {
	for _, op := range registered(t) {
		if missing := lacks(op); len(missing) > 0 {
			t.Errorf("%s lacks: %s", op.Name, strings.Join(missing, "; "))
		}
	}
}

func TestAnOperationWithoutADescriptionIsFound(t *testing.T) {
	bare := &ops.Op{Name: "array.new", Params: []ops.Param{{Name: "x", Type: "other"}}, Variadic: "xs", Open: true, Libraries: []string{"new"}}
	want := []string{"Doc is one sentence", "Doc of x", "Types has the type other", "VariadicDoc", "OpenDoc", "Result", "library new", "Example"}
	if got := lacks(bare); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The keys differ, so that a user can submit all examples to one cluster.
func TestExamplesGiveTheirResults(t *testing.T) {
	host, all := ops.NewRegistry(), ops.NewRegistry(ops.CUDAKernel())
	keys := map[string]bool{}
	for _, op := range registered(t) {
		last, onHost := "", true
		got := opstest.Run(t, op.Example, func(c opstest.Call) any {
			if keys[c.Key] {
				t.Errorf("%s: the key %s is that of another example, too", op.Name, c.Key)
			}
			keys[c.Key], last = true, c.Op
			one, err := host.Lookup(c.Op)
			if err != nil {
				// Only its arguments can be checked here.
				onHost = false
				if one, err = all.Lookup(c.Op); err == nil {
					_, err = one.Plan(c.Args)
				}
				if err != nil {
					t.Errorf("%s: %v", op.Name, err)
				}
				return nil
			}
			result, err := one.Run(ops.WithEnv(t.Context(), ops.Env{Attempt: c.Attempt}), c.Args, ops.NewTensor)
			if err != nil {
				t.Errorf("%s: %v", op.Name, err)
			}
			return result
		})
		if last != op.Name {
			t.Errorf("%s: the last task of the example calls %q", op.Name, last)
		}
		if op.Example.Result != "" && onHost {
			if message := opstest.Diff(t, got, op.Example.Result); message != "" {
				t.Errorf("%s: %s", op.Name, message)
			}
		}
	}
}

func TestThePageIsThatOfTheRegistry(t *testing.T) {
	page, err := os.ReadFile("../../../docs/ops.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != reference.Page() {
		t.Error("docs/ops.md is out of date: run make gen")
	}
}

// structural matches the beginnings of lines that Markdown takes for more than text.
var structural = regexp.MustCompile(`^([-+*>#]|[0-9]+[.)]) `)

func TestTextsAreBrokenIntoLines(t *testing.T) {
	code, items := false, 0
	for line := range strings.SplitSeq(reference.Page(), "\n") {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if code || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ") {
			continue
		}
		if n := utf8.RuneCountInString(line); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
		if structural.MatchString(line) {
			items++
			if !strings.HasPrefix(line, "## ") && !strings.HasPrefix(line, "# ") && !strings.HasPrefix(line, "- Result: ") &&
				!strings.HasPrefix(line, "- Runs on: ") && !strings.HasPrefix(line, "- Error: ") {
				t.Errorf("a line that was broken begins with %q", line)
			}
		}
	}
	if items < 50 {
		t.Errorf("only %d headings and items", items)
	}
}

func TestOneOperationIsDescribed(t *testing.T) {
	found, err := reference.Lookup("array.concat", "cuda.kernel")
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	concat, kernel := found[0], found[1]
	for _, part := range []string{"array.concat(*xs, axis=0)", "  axis: int, default 0\n", "  *xs: any\n", "Runs on:\n    host, GPU\n", "Its result:\n[[1, 3], [2, 4]]\n"} {
		if !strings.Contains(concat.Text(), part) {
			t.Errorf("nowhere: %q\n%s", part, concat.Text())
		}
	}
	if !slices.Equal(kernel.Devices, []string{"cuda"}) || kernel.RunsOn() != "GPU" || !strings.Contains(kernel.Text(), "GPU, with `libnvrtc`") ||
		!strings.Contains(kernel.Text(), " docs/gpu-operations.md has more") {
		t.Errorf("%v\n%s", kernel.Devices, kernel.Text())
	}
	text, err := json.Marshal(concat)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Name, Signature string
		Parameters      []struct {
			Name, Type, Group string
			Default           any
		}
		Example struct {
			Graph  struct{ Tasks []map[string]any }
			Result [][]int
		}
	}
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if p := back.Parameters; len(p) != 2 || p[0].Name != "xs" || p[0].Group != "positional" || p[1].Default != 0.0 || back.Example.Result[1][1] != 4 ||
		back.Example.Graph.Tasks[0]["op"] != "array.concat" {
		t.Errorf("%s", text)
	}
	if _, err := reference.Lookup("array.mamtul"); err == nil || !strings.Contains(err.Error(), "did you mean array.matmul?") {
		t.Error(err)
	}
}
