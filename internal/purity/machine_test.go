package purity

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// bannedInMachines are import paths, including all paths below them, with the reason.
var bannedInMachines = []struct{ path, why string }{
	{"net", "machines do no IO"},
	{"os", "machines do no IO"},
	{"io", "machines do no IO"},
	{"syscall", "machines do no IO"},
	{"golang.org/x/sys", "machines do no IO"},
	{"context", "a wait is an event that comes later"},
	{"sync", "a machine has one owner"},
	{"log", "say it in an effect or the history"},
	{"math/rand", "take random picks from a source passed at construction"},
	{"crypto/rand", "take random picks from a source passed at construction"},
	{"unsafe", "machines are plain Go"},
	{"runtime", "machines are plain Go"},
	{"C", "machines are plain Go"},
	{"google.golang.org", "protos and gRPC end at the adapters"},
	{modulePath + "/gen", "protos and gRPC end at the adapters"},
}

// clocks are the functions of package time that read the clock or wait.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

func TestMachinesArePure(t *testing.T) {
	for _, p := range loadModule(t) {
		if !under(p.dir, machines...) || len(p.files) == 0 {
			continue
		}
		if k := p.kind(); k != "Machine" && !isTestPackage(p.dir) {
			t.Errorf("%s: its doc comment says %q, and it is listed as a machine", p.dir, k)
		}
		for _, finding := range impurities(p) {
			t.Error(finding)
		}
	}
}

// impurities lists the constructs in a package that machines must not have, by file and line.
func impurities(p *goPackage) []string {
	var found []string
	report := func(pos token.Pos, format string, args ...any) {
		at := p.fset.Position(pos)
		found = append(found, fmt.Sprintf("%s:%d: %s", at.Filename, at.Line, fmt.Sprintf(format, args...)))
	}
	maps := mapRanges(p)
	for _, f := range p.files {
		for path, pos := range imports([]*ast.File{f}) {
			for _, b := range bannedInMachines {
				if under(path, b.path) {
					report(pos, "a machine imports %s: %s", path, b.why)
				}
			}
		}
		timeName := importName(f, "time")
		excused := excuses(p.fset, f)
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				for _, s := range g.Specs {
					if !isSentinel(s.(*ast.ValueSpec)) {
						report(s.Pos(), "a machine has the package variable %s: only errors made by errors.New may be ones", s.(*ast.ValueSpec).Names[0])
					}
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				report(n.Pos(), "a machine starts a goroutine")
			case *ast.SelectStmt:
				report(n.Pos(), "a machine selects")
			case *ast.SendStmt:
				report(n.Pos(), "a machine sends on a channel")
			case *ast.ChanType:
				report(n.Pos(), "a machine has a channel")
			case *ast.RangeStmt:
				if maps[n.Pos()] && !excused[p.fset.Position(n.Pos()).Line] {
					report(n.Pos(), "a machine ranges over a map, whose order may reach an effect: sort the keys, or say why it cannot in a comment above that starts with \"sorted:\" or \"order-free:\"")
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && timeName != "" && x.Name == timeName && slices.Contains(clocks, n.Sel.Name) {
					report(n.Pos(), "a machine calls time.%s: time comes in with the event", n.Sel.Name)
				}
			}
			return true
		})
	}
	slices.Sort(found)
	return found
}

// importName returns the name by which a file refers to a package, "" if it does not import it.
func importName(f *ast.File, path string) string {
	for _, s := range f.Imports {
		if s.Path.Value == `"`+path+`"` {
			if s.Name != nil {
				return s.Name.Name
			}
			return path[strings.LastIndex(path, "/")+1:]
		}
	}
	return ""
}

// isSentinel reports whether a package variable is an error made by errors.New, or an assertion
// that a type implements an interface.
func isSentinel(s *ast.ValueSpec) bool {
	for _, n := range s.Names {
		if n.Name == "_" {
			return true
		}
	}
	for _, v := range s.Values {
		call, ok := v.(*ast.CallExpr)
		if !ok {
			return false
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok || x.Name != "errors" || sel.Sel.Name != "New" {
			return false
		}
	}
	return len(s.Values) > 0
}

// excuses returns the lines that follow a comment with a reason why the order of a map does no
// harm.
func excuses(fset *token.FileSet, f *ast.File) map[int]bool {
	lines := map[int]bool{}
	for _, g := range f.Comments {
		text := g.Text()
		for _, word := range []string{"sorted:", "order-free:"} {
			_, why, ok := strings.Cut("\n"+text, "\n"+word)
			if ok && strings.TrimSpace(why) != "" {
				lines[fset.Position(g.End()).Line+1] = true
			}
		}
	}
	return lines
}

// mapRanges returns the positions of loops over maps, and over iterators that package maps makes
// from maps. It checks the package's types without its imports: a map type that another package
// declares is not found, but machines keep their own state.
func mapRanges(p *goPackage) map[token.Pos]bool {
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	config := types.Config{
		Importer: emptyImporter{},
		Error:    func(error) {}, // names from the empty imports are unknown
	}
	//nolint:errcheck // see Error above; what could be typed is in info.
	config.Check(p.dir, p.fset, p.files, info)
	found := map[token.Pos]bool{}
	for _, f := range p.files {
		mapsName := importName(f, "maps")
		ast.Inspect(f, func(n ast.Node) bool {
			r, ok := n.(*ast.RangeStmt)
			if !ok {
				return true
			}
			if isMap(info.Types[r.X].Type) {
				found[r.Pos()] = true
			}
			if call, ok := r.X.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
					if x, ok := sel.X.(*ast.Ident); ok && mapsName != "" && x.Name == mapsName {
						found[r.Pos()] = true
					}
				}
			}
			return true
		})
	}
	return found
}

func isMap(t types.Type) bool {
	if t == nil {
		return false
	}
	if _, ok := t.Underlying().(*types.Map); ok {
		return true
	}
	p, ok := t.Underlying().(*types.Interface)
	if !ok {
		return false
	}
	// A type parameter that is constrained to maps.
	for i := range p.NumEmbeddeds() {
		if u, ok := p.EmbeddedType(i).(*types.Union); ok {
			for j := range u.Len() {
				if isMap(u.Term(j).Type()) {
					return true
				}
			}
		}
	}
	return false
}

// emptyImporter returns an empty package for each import path, so that the type check needs neither
// compiled packages nor their sources.
type emptyImporter struct{}

// Import is part of types.Importer.
func (emptyImporter) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	p := types.NewPackage(path, path[strings.LastIndex(path, "/")+1:])
	p.MarkComplete()
	return p, nil
}

// The rules themselves are tested with code that breaks each of them.
func TestImpuritiesAreFound(t *testing.T) {
	const head = "// Package x is a Machine: a test.\npackage x\n"
	for name, c := range map[string]struct{ code, want string }{
		"goroutine":        {`func f() { go f() }`, "starts a goroutine"},
		"select":           {`func f() { select {} }`, "selects"},
		"channel":          {`type t struct{ c chan int }`, "has a channel"},
		"channel in make":  {`func f() { _ = make(chan int) }`, "has a channel"},
		"variable":         {`var count int`, "package variable count"},
		"table":            {`var names = []string{"a"}`, "package variable names"},
		"sentinel":         {`import "errors"; var ErrX = errors.New("x")`, ""},
		"assertion":        {`var _ interface{} = 1`, ""},
		"os":               {`import "os"; var _ = os.Args`, "imports os"},
		"net/http":         {`import _ "net/http"`, "imports net/http"},
		"netip is net":     {`import _ "net/netip"`, "imports net/netip"},
		"grpc":             {`import _ "google.golang.org/grpc/codes"`, "imports google.golang.org/grpc/codes"},
		"gen":              {`import _ "` + modulePath + `/gen/go/millrace/v1"`, "protos and gRPC end"},
		"sync/atomic":      {`import _ "sync/atomic"`, "imports sync/atomic"},
		"cgo":              {`import "C"`, "imports C"},
		"clock":            {`import "time"; func f() { _ = time.Now() }`, "time.Now"},
		"renamed clock":    {`import clock "time"; func f() { <-clock.After(1) }`, "time.After"},
		"clock as a value": {`import "time"; func f() any { return time.Since }`, "time.Since"},
		"time type":        {`import "time"; func f(now time.Time) time.Duration { return now.Sub(now) }`, ""},
		"map":              {"func f(m map[int]int) {\n\tfor range m {\n\t}\n}", "ranges over a map"},
		"map in a field":   {"type t struct{ m map[int]int }\nfunc (x *t) f() {\n\tfor range x.m {\n\t}\n}", "ranges over a map"},
		"named map":        {"type m map[int]int\nfunc f(x m) {\n\tfor range x {\n\t}\n}", "ranges over a map"},
		"map of imported":  {"import \"time\"\nfunc f(m map[time.Time]time.Time) {\n\tfor range m {\n\t}\n}", "ranges over a map"},
		"any map":          {"func f[M ~map[K]V, K comparable, V any](m M) {\n\tfor range m {\n\t}\n}", "ranges over a map"},
		"map keys":         {"import \"maps\"\nfunc f(m map[int]int) {\n\tfor range maps.Keys(m) {\n\t}\n}", "ranges over a map"},
		"excused":          {"func f(m map[int]int) (n int) {\n\t// order-free: a sum.\n\tfor _, v := range m {\n\t\tn += v\n\t}\n\treturn n\n}", ""},
		"excused, no why":  {"func f(m map[int]int) {\n\t// order-free:\n\tfor range m {\n\t}\n}", "ranges over a map"},
		"slice":            {"func f(s []int) {\n\tfor range s {\n\t}\n}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, "x.go", head+c.code, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			found := strings.Join(impurities(&goPackage{dir: "x", fset: fset, files: []*ast.File{f}}), "\n")
			if c.want == "" && found != "" || !strings.Contains(found, c.want) {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}
