package purity

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// simulated are the loops that the simulation runs in virtual time. All that they do is a function
// of their inputs, their clock and their random source.
var simulated = []string{"server/loop"}

// TestSimulatedLoopsHaveOneClock: they read the clock of their configuration only, and the order of
// a map reaches nothing.
func TestSimulatedLoopsHaveOneClock(t *testing.T) {
	for _, p := range loadModule(t) {
		if slices.Contains(simulated, p.dir) {
			for _, finding := range undetermined(p) {
				t.Error(finding)
			}
		}
	}
}

// undetermined lists the constructs of a package that make two runs with equal inputs differ.
func undetermined(p *goPackage) (found []string) {
	report := func(pos token.Pos, text string) {
		at := p.fset.Position(pos)
		found = append(found, fmt.Sprintf("%s:%d: %s", at.Filename, at.Line, text))
	}
	maps := mapRanges(p)
	for _, f := range p.files {
		timeName, excused := importName(f, "time"), excuses(p.fset, f)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.RangeStmt:
				if maps[n.Pos()] && !excused[p.fset.Position(n.Pos()).Line] {
					report(n.Pos(), "a loop that is simulated ranges over a map: sort the keys, or say why the order reaches nothing in a comment above that starts with \"sorted:\" or \"order-free:\"")
				}
			case *ast.CallExpr:
				s, ok := n.Fun.(*ast.SelectorExpr)
				if !ok {
					break
				}
				if x, ok := s.X.(*ast.Ident); ok && timeName != "" && x.Name == timeName && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc"}, s.Sel.Name) {
					report(n.Pos(), "a loop that is simulated calls time."+s.Sel.Name+": take the time from the clock of its configuration")
				}
			}
			return true
		})
	}
	return found
}

// The rule itself is tested with code that breaks it.
func TestSecondClocksAreFound(t *testing.T) {
	for code, want := range map[string]int{
		"import \"time\"\nfunc f() { _ = time.Now() }":                              1,
		"import \"time\"\nvar clock = time.Now":                                     0,
		"func f(m map[int]int) {\n\tfor range m {\n\t}\n}":                          1,
		"func f(m map[int]int) {\n\t// order-free: a sum.\n\tfor range m {\n\t}\n}": 0,
	} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "x.go", "package x\n"+code, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if found := undetermined(&goPackage{dir: "x", fset: fset, files: []*ast.File{f}}); len(found) != want {
			t.Errorf("%q: %d findings, want %d: %q", code, len(found), want, found)
		}
	}
}
