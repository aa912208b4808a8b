package purity

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/millrace/millrace"

// machines are the directories of the pure packages; the packages below them count as well.
var machines = []string{"server/sched", "server/coord", "server/members", "server/copies", "server/functions", "server/plugins", "server/templates", "worker/lifecycle", "transfer/flow", "memory/alloc", "memory/ledger"}

// cgoAllowed are the only packages that may import "C".
var cgoAllowed = []string{"transfer/ucx", "transfer/gather", "memory/cuda", "internal/sharedlib", "worker/ops/simd"}

// goPackage is one directory of Go files, with the parts that the rules examine.
type goPackage struct {
	dir   string // slash-separated, from the module's root
	fset  *token.FileSet
	files []*ast.File // without tests
	tests []*ast.File
}

// kind returns the kind of package that the doc comment names after "Package x is a", or "".
func (p *goPackage) kind() string {
	for _, f := range p.files {
		if k := kindOf(f.Doc.Text()); k != "" {
			return k
		}
	}
	return ""
}

var kinds = []string{"Machine", "Adapter", "Loop", "Interface", "Test support"}

func kindOf(doc string) string {
	words := strings.Fields(doc)
	if len(words) > 3 && words[0] == "Package" && words[2] == "is" {
		words = words[3:]
		if words[0] == "a" || words[0] == "an" || words[0] == "the" {
			words = words[1:]
		}
	}
	doc = strings.Join(words, " ")
	for _, k := range kinds {
		rest, ok := strings.CutPrefix(doc, k)
		if ok && strings.Contains(rest, ":") && (rest[0] == ':' || rest[0] == ' ') {
			return k
		}
	}
	return ""
}

// imports returns the import paths of files, with the position of each.
func imports(files []*ast.File) map[string]token.Pos {
	paths := map[string]token.Pos{}
	for _, f := range files {
		for _, s := range f.Imports {
			if path, err := strconv.Unquote(s.Path.Value); err == nil {
				paths[path] = s.Pos()
			}
		}
	}
	return paths
}

func under(dir string, tops ...string) bool {
	return slices.ContainsFunc(tops, func(top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") })
}

func isTestPackage(dir string) bool {
	base := dir[strings.LastIndex(dir, "/")+1:]
	return strings.HasSuffix(base, "test") && base != "test" || under(dir, "test")
}

// loadModule parses every Go file of the module. Of generated code it parses only the package
// clause and the imports.
func loadModule(t *testing.T) []*goPackage {
	t.Helper()
	root := moduleRoot(t)
	byDir := map[string]*goPackage{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil // removed while WalkDir ran
			}
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path == root {
				return nil
			}
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if err == nil || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || slices.Contains([]string{"testdata", "node_modules", "bin", "shared"}, name) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		mode := parser.ParseComments | parser.SkipObjectResolution
		if under(dir, "gen") {
			mode = parser.ImportsOnly
		}
		f, err := parser.ParseFile(fset, path, nil, mode)
		if err != nil {
			return err
		}
		p := byDir[dir]
		if p == nil {
			p = &goPackage{dir: dir, fset: fset}
			byDir[dir] = p
		}
		if strings.HasSuffix(name, "_test.go") {
			p.tests = append(p.tests, f)
		} else {
			p.files = append(p.files, f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []*goPackage
	for _, p := range byDir {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *goPackage) int { return strings.Compare(a.dir, b.dir) })
	return all
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
}
