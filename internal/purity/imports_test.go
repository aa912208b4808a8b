package purity

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// madeOf lists adapters that are built on another adapter, with the reason.
var madeOf = []struct{ adapter, of, why string }{
	{"worker/device/host", "worker/ops", "a device is memory and the operations on it"},
	{"worker/device/host", "worker/device/wire", "calls and results have the same form on every device"},
	{"worker/device/wire", "worker/ops", "it turns what the API sends into what operations take"},
	{"worker/device/cuda", "worker/ops", "operations are planned alike everywhere; only what carries them out differs"},
	{"worker/device/cuda", "worker/device/wire", "calls and results have the same form on every device"},
	{"worker/ops", "worker/ops/lapack", "operations of linear algebra call a library"},
	{"worker/ops", "worker/ops/simd", "element-wise operations run its kernels"},
	{"worker/ops", "worker/tables", "operations on tables move rows by it"},
	{"worker/device/host", "worker/ops/lapack", "a device chooses the library of its operations"},
	{"worker/device/cuda", "worker/ops/lapack", "as worker/device/host, for operations that the CPU computes"},
	{"transfer/ipc", "memory/cuda", "it copies by the driver that allocated the memory"},
	{"transfer/ipc", "transfer/borrow", "loans of memory on a GPU are asked for and given back as those of host memory are"},
	{"transfer/pinned", "memory/cuda", "as transfer/ipc"},
	{"transfer/pinned", "transfer/borrow", "as transfer/ipc"},
	{"transfer/ucx", "memory/cuda", "UCX wants the driver's context on its thread, and our mapping beside its own"},
	{"worker/device/cuda", "memory/cuda", "kernels run by the driver that allocated their memory"},
}

// shared lists adapters that all adapters of the same room may import. Code that adapters of
// several rooms share lies below internal.
var shared = []string{"transfer/dataproto", "transfer/objindex", "transfer/ring", "server/journal"}

// isShared reports whether dir may import the adapter to because to is shared in the room of dir.
func isShared(dir, to string) bool {
	room, _, _ := strings.Cut(to, "/")
	return under(to, shared...) && under(dir, room)
}

// mainParts are the directories that connect all packages.
var mainParts = []string{"cmd", "test", "bench"}

func TestImportsFollowTheLayout(t *testing.T) {
	all := loadModule(t)
	kind := map[string]string{}
	for _, p := range all {
		kind[p.dir] = p.kind()
	}
	for _, p := range all {
		for path, pos := range imports(p.files) {
			for _, why := range broken(p.dir, path, kind) {
				t.Errorf("%s: %s", p.fset.Position(pos), why)
			}
		}
		for path, pos := range imports(p.tests) {
			for _, why := range brokenInTests(p.dir, path) {
				t.Errorf("%s: %s", p.fset.Position(pos), why)
			}
		}
	}
}

// broken returns the rules that an import breaks outside of tests. kind maps
// directories to kinds of packages.
func broken(dir, path string, kind map[string]string) (why []string) {
	rule := func(bad bool, format string, args ...any) {
		if bad {
			why = append(why, fmt.Sprintf(format, args...))
		}
	}
	why = brokenInTests(dir, path)
	to, ours := strings.CutPrefix(path, modulePath+"/")
	rule(path == "C" && !under(dir, cgoAllowed...), "cgo is allowed in %s only: elsewhere CGO_ENABLED=0 must build", strings.Join(cgoAllowed, ", "))
	rule(under(path, "github.com/anishathalye/porcupine") && !under(dir, "test/model"), "only test/model imports porcupine: tests write a history of that package")
	rule(under(path, "github.com/hashicorp/go-memdb") && !under(dir, "server/catalog"), "only server/catalog imports go-memdb: others go through its types")
	if !ours {
		return why
	}
	rule(isTestPackage(to) && !isTestPackage(dir), "%s is test support: import it from tests only", to)
	rule(under(to, mainParts...) && !under(dir, mainParts...), "%s wires the parts together: the parts do not import it", to)
	if under(dir, mainParts...) || isTestPackage(dir) {
		return why
	}
	from, target := kind[dir], kind[to]
	rule(from == "Machine" && (target == "Adapter" || target == "Loop"), "a machine imports the %s %s: hand it values instead", strings.ToLower(target), to)
	rule(from == "Interface" && (target == "Adapter" || target == "Loop"), "an interface imports the %s %s", strings.ToLower(target), to)
	rule(from == "Adapter" && target == "Adapter" && !under(to, dir, "internal") && !under(dir, to) && !isShared(dir, to) && !isMadeOf(dir, to), "adapter %s imports adapter %s: main introduces them", dir, to)
	rule(from == "Adapter" && target == "Loop", "adapter %s imports loop %s: main introduces them", dir, to)
	return why
}

func isMadeOf(dir, to string) bool {
	for _, m := range madeOf {
		if m.adapter == dir && m.of == to {
			return true
		}
	}
	return false
}

// brokenInTests returns the rules that an import breaks even in a test.
func brokenInTests(dir, path string) (why []string) {
	to, ours := strings.CutPrefix(path, modulePath+"/")
	if !ours {
		return nil
	}
	rule := func(bad bool, format string, args ...any) {
		if bad {
			why = append(why, fmt.Sprintf(format, args...))
		}
	}
	for _, apart := range []struct{ from, to, instead string }{
		{"server", "worker", "they share gen and internal/ids"},
		{"worker", "server", "they share gen and internal/ids"},
		{"transfer", "server", "it knows nothing of tasks"},
		{"transfer", "worker", "it knows nothing of tasks"},
		{"memory", "server", "it knows nothing of them"},
		{"memory", "worker", "it knows nothing of them"},
		{"memory", "transfer", "transfers use memory, not the other way round"},
		{"internal", "server", "internal is below all rooms"},
		{"internal", "worker", "internal is below all rooms"},
		{"internal", "transfer", "internal is below all rooms"},
		{"internal", "memory", "internal is below all rooms"},
		{"clients/go", "server", "clients know the protos only"},
		{"clients/go", "worker", "clients know the protos only"},
		{"internal/ids", "", "it is below everything"},
	} {
		rule(under(dir, apart.from) && (apart.to == "" || under(to, apart.to)) && to != dir, "%s imports %s: %s", dir, to, apart.instead)
	}
	return why
}

func TestEveryPackageSaysItsKind(t *testing.T) {
	for _, p := range loadModule(t) {
		if len(p.files) == 0 || under(p.dir, "gen", "clients", "examples", "cmd", "tools") || p.files[0].Name.Name == "main" || buildIgnored(p) {
			continue
		}
		if p.kind() == "" {
			t.Errorf("%s: no doc comment of the form \"Package x is a Kind: ...\" with one of %s", p.dir, strings.Join(kinds, ", "))
		}
		if isTestPackage(p.dir) && p.kind() != "Test support" && p.kind() != "" {
			t.Errorf("%s: by its name it is test support, by its doc comment %s", p.dir, p.kind())
		}
	}
}

// buildIgnored reports whether a directory contains only scripts for go run.
func buildIgnored(p *goPackage) bool {
	return !slices.ContainsFunc(p.files, func(f *ast.File) bool {
		return !slices.ContainsFunc(f.Comments, func(g *ast.CommentGroup) bool {
			return g.Pos() < f.Package && strings.HasPrefix(g.List[0].Text, "//go:build ignore")
		})
	})
}

func TestBrokenImportsAreFound(t *testing.T) {
	kind := map[string]string{
		"server/sched": "Machine", "server/rpc": "Adapter", "server/catalog": "Adapter", "server/loop": "Loop",
		"memory": "Interface", "memory/host": "Adapter", "memory/alloc": "Machine", "transfer/ucx": "Adapter",
		"worker/lifecycle": "Machine", "worker/loop": "Loop", "transfer": "Interface", "transfer/ucx/shim": "Adapter", "internal/rawframe": "Adapter", "transfer/objindex": "Adapter",
		"worker/device/host": "Adapter", "worker/ops": "Adapter", "worker/executor": "Adapter",
	}
	const ours = modulePath + "/"
	for _, c := range []struct{ from, path, want string }{
		{"server/loop", ours + "worker/lifecycle", "they share gen"},
		{"worker/loop", ours + "server/sched", "they share gen"},
		{"server/sched", ours + "server/rpc", "a machine imports the adapter"},
		{"server/sched", ours + "server/loop", "a machine imports the loop"},
		{"server/rpc", ours + "server/catalog", "main introduces them"},
		{"server/rpc", ours + "server/sched", ""},
		{"server/loop", ours + "server/rpc", ""},
		{"transfer/ucx", ours + "memory/host", "main introduces them"},
		{"transfer/ucx", ours + "transfer/ucx/shim", ""},
		{"transfer/ucx", ours + "memory", ""},
		{"transfer/ucx", ours + "transfer/objindex", ""},
		{"memory/host", ours + "transfer/objindex", "not the other way round"},
		{"worker/executor", ours + "transfer/objindex", "main introduces them"},
		{"internal/rawframe", ours + "memory", "below all rooms"},
		{"transfer/ucx", ours + "internal/rawframe", ""},
		{"worker/device/host", ours + "worker/ops", ""},
		{"worker/device/host", ours + "memory/host", "main introduces them"},
		{"worker/executor", ours + "worker/ops", "main introduces them"},
		{"transfer/ucx", "C", ""},
		{"memory/host", "C", "cgo is allowed"},
		{"memory", ours + "memory/host", "an interface imports"},
		{"memory/alloc", ours + "transfer", "not the other way round"},
		{"worker/loop", ours + "memory/memorytest", "from tests only"},
		{"worker/loop", ours + "test/sim", "from tests only"},
		{"memory/memorytest", ours + "memory/host", ""},
		{"server/sched", "github.com/hashicorp/go-memdb", "only server/catalog"},
		{"server/catalog", "github.com/hashicorp/go-memdb", ""},
		{"test/sim", "github.com/anishathalye/porcupine", "only test/model"},
		{"test/model", "github.com/anishathalye/porcupine", ""},
		{"server/loop", ours + "test/model", "from tests only"},
		{"internal/ids", ours + "memory", "below everything"},
		{"server/loop", ours + "cmd/millrace", "wires the parts"},
		{"cmd/millrace", ours + "worker/loop", ""},
		{"test/sim", ours + "server/sched", ""},
	} {
		got := strings.Join(broken(c.from, c.path, kind), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s imports %s: got %q, want %q", c.from, c.path, got, c.want)
		}
	}
}

func TestKindIsReadFromTheDocComment(t *testing.T) {
	for doc, want := range map[string]string{
		"Package x is a Machine: it decides.":                 "Machine",
		"Package x is an\nAdapter: for y.":                    "Adapter",
		"Package memorytest is Test support: what must hold.": "Test support",
		"Loop: the clock.":                                    "Loop",
		"Package x is an Adapter to the build: it knows.":     "Adapter",
		"Package x is a Machinery: it clatters.":              "",
		"Package x does things.":                              "",
		"Package x is a helper. See Machine: it decides.":     "",
		"": "",
	} {
		if got := kindOf(doc); got != want {
			t.Errorf("%q: got %q, want %q", doc, got, want)
		}
	}
}
