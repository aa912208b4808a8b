package purity

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// capitals matches texts in the form of a reason.
var capitals = regexp.MustCompile(`^[A-Z][A-Z0-9]{2,}$|^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$`)

// pythonText matches a text in capitals in the source of a Python module.
var pythonText = regexp.MustCompile(`"([A-Z][A-Z0-9_]{2,})"`)

// notReasons are texts in capitals that are neither reasons nor values of another enum of the API.
// Each must still be in the code.
var notReasons = strings.Fields(`
	NONE ADMITTING LEASING PAUSING FETCHING QUEUED GPU PCI_BUS_ID CPU_COUNT
	MILLRACE MILLJRNL MILLPEER MILLUCX1 MILLNTF1 MILLRAW1 DSL_VERSION PAR1 KMGTPE SIGKILL
	TLS NET_DEVICES KEEPALIVE_INTERVAL TOKEN_FILE
	CONDA_EXE LD_LIBRARY_PATH PYTHONPATH PYTHONUNBUFFERED MKL_NUM_THREADS OMP_NUM_THREADS OPENBLAS_NUM_THREADS
	AF_UNIX SO_PEERCRED STATUS_ALLOC_FAILED MKL BLIS ATLAS PIX PXB PHB NODE SYS`)

// foreign are the beginnings of names that others chose, and of our environment variables.
var foreign = regexp.MustCompile(`^(MILLRACE|UCX|CUDA|CUDF|DASK|CUBLAS|OTEL)_`)

// TestReasonsAreThoseOfTheAPI: the code has a reason as text, since machines and Python executors
// do not know the enum. So each text in capitals is in ErrorReason, in notReasons, or foreign; and
// each reason of the enum is used by the code.
func TestReasonsAreThoseOfTheAPI(t *testing.T) {
	known := map[string]bool{}
	for _, name := range millracev1.ErrorReason_name {
		if reason := strings.TrimPrefix(name, "ERROR_REASON_"); reason != "UNSPECIFIED" {
			known[reason] = false
		}
	}
	excused, states := map[string]bool{}, valuesOfEnums()
	for _, text := range notReasons {
		excused[text] = false
	}
	use := func(text, place string) {
		if _, ok := known[text]; ok {
			known[text] = true
		} else if _, ok := excused[text]; ok {
			excused[text] = true
		} else if !states[text] && !foreign.MatchString(text) {
			t.Errorf("%s: %q: if it is the reason of an error, add it to ErrorReason in error.proto; if not, to notReasons here", place, text)
		}
	}
	for text, place := range textsOfGo(t) {
		use(text, place)
	}
	for text, place := range textsOfPython(t) {
		use(text, place)
	}
	for _, reason := range slices.Sorted(maps.Keys(known)) {
		if !known[reason] {
			t.Errorf("ERROR_REASON_%s: nothing in Go or Python uses this reason: remove it from error.proto", reason)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(excused)) {
		if !excused[text] {
			t.Errorf("notReasons: %q is not in the code any more: remove it", text)
		}
	}
}

// valuesOfEnums returns the names of the API's enum values, without the prefix that each has from
// its enum. Many stand in the code as text: states, statuses.
func valuesOfEnums() map[string]bool {
	values := map[string]bool{}
	for _, file := range []protoreflect.FileDescriptor{millracev1.File_millrace_v1_task_proto, millracev1.File_millrace_v1_worker_proto} {
		for i := range file.Enums().Len() {
			enum := file.Enums().Get(i).Values()
			unset := string(enum.ByNumber(0).Name())
			for j := range enum.Len() {
				values[strings.TrimPrefix(string(enum.Get(j).Name()), strings.TrimSuffix(unset, "UNSPECIFIED"))] = true
			}
		}
	}
	return values
}

// textsOfGo returns the texts in capitals of the module's own code, each with a place. Single words
// of the command line are headings of tables.
func textsOfGo(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	sources(t, func(file, name string) {
		dir := path.Dir(name)
		testing := slices.ContainsFunc(strings.Split(dir, "/"), isTestPackage)
		if testing || strings.HasSuffix(name, "_test.go") || under(dir, "bench", "examples", "tools") {
			return
		}
		headings := under(dir, "cmd")
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err == nil && capitals.MatchString(text) && (!headings || strings.Contains(text, "_")) {
				found[text] = name + ":" + strconv.Itoa(fset.Position(literal.Pos()).Line)
			}
			return true
		})
	}, ".go")
	return found
}

// textsOfPython is textsOfGo for the Python package.
func textsOfPython(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	sources(t, func(file, name string) {
		if !under(name, "clients/python/src") {
			return
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(source), "\n") {
			for _, match := range pythonText.FindAllStringSubmatch(line, -1) {
				if capitals.MatchString(match[1]) {
					found[match[1]] = name + ":" + strconv.Itoa(i+1)
				}
			}
		}
	}, ".py")
	return found
}
