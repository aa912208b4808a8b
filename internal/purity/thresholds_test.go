package purity

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// loopThresholds are the numbers of bytes and the times that loops have: by package and name, the
// reason why no machine has it.
var loopThresholds = map[string]string{
	"server scavengeEvery":    "memory of the Go runtime is no fact that a machine knows",
	"server scavengeQuiet":    "memory of the Go runtime is no fact that a machine knows",
	"server scavengeWork":     "memory of the Go runtime is no fact that a machine knows",
	"server scavengeResident": "memory of the Go runtime is no fact that a machine knows",
	"server defaultStopGrace": "the process ends after it, and the machines with it",
	"server acceptPause":      "it protects the port, which only net sees",
	"server headerTimeout":    "it protects the HTTP port, which only net/http sees",
	"server idleTimeout":      "it protects the HTTP port, which only net/http sees",
	"server observeEvery":     "it is the pace of observations; package alarms decides what they mean",

	"server/loop defaultTTL":  "it is the default of a field that clients set",
	"server/loop awaitTTL":    "it never ends a lease: Await closes its own",
	"server/loop commitGap":   "the catalogue is a copy for readers, of which no machine knows",
	"server/loop commitDelay": "the catalogue is a copy for readers, of which no machine knows",
	"server/loop countersGap": "the catalogue is a copy for readers, of which no machine knows",
	"server/loop eventBytes":  "it cuts texts for people",
	"server/loop idleSleep":   "it only sets the alarm of a loop that has nothing to do",
	"server/loop idleLeft":    "it only sets the alarm of a loop that has nothing to do",
	"server/loop batchBytes":  "it bounds a message",

	"server/loop snapshotGap":      "it shares the time of the loop, of which no machine knows",
	"server/loop stopSnapshotTime": "the process ends after it, and the machines with it",

	"worker lookupTimeout":      "how long samples wait for DNS; nothing else depends on it",
	"worker reconnect":          "gRPC dials by it; package members decides how long a worker may be away",
	"worker followPause":        "it bounds the rate of a stream of output to one reader",
	"worker probeEvery":         "it is the pace of observations of the GPU",
	"worker checkWithin":        "it protects against a driver that hangs",
	"worker foreignBytes":       "it only writes a warning to the log",
	"worker hugePage":           "it is the kernel's unit of memory",
	"worker mirrorBytes":        "it is the size of memory that is made at the start, before there is a machine",
	"worker pinAhead":           "it is the pace at which memory is prepared; package ledger decides who gets it",
	"worker sampleEvery":        "it is the pace of observations of the GPU and of network devices",
	"worker sampleKeeps":        "it drops an old observation, so that nobody decides by it",
	"worker slabTimeout":        "the slab is made at the start, before there is a machine",
	"worker firstTimeout":       "the slab is made at the start, before there is a machine",
	"worker hangTime":           "it detects that the loop hangs, and then no machine steps",
	"worker keepDead":           "it is a default; the scheduler's machine ends the time earlier",
	"worker suspectFor":         "the state of other GPUs is kept for paths, which ask from any goroutine",
	"worker MinRCTimeout":       "it is a limit of a setting, which is checked before the start",
	"worker MaxRCTimeout":       "it is a limit of a setting, which is checked before the start",
	"worker defaultSpinTime":    "it is the default of a setting, for package spin",
	"worker defaultMemoryLimit": "it is the default of a setting",
	"worker farewell":           "it is a wait at the end of the process, when the machine has stopped",
	"worker peerTimeout":        "gRPC detects by it that a connection is lost",
	"worker leastPing":          "it protects the port from readers that ping too often",
	"worker dialTimeout":        "gRPC dials by it",
	"worker window":             "it is a buffer of a connection",

	"worker/supervisor deviceMemory":   "a supervisor has no machine: failures.another decides, and is tested alone",
	"worker/supervisor sessionTimeout": "it protects against processes that the kernel does not end",
	"worker/supervisor firstLook":      "it is the pace of observations of processes that end",
	"worker/supervisor longestLook":    "it is the pace of observations of processes that end",
	"worker/supervisor firstBackoff":   "a supervisor has no machine; it is the pause before a process starts again",
	"worker/supervisor longestBackoff": "a supervisor has no machine; it is the pause before a process starts again",
	"worker/supervisor steady":         "a supervisor has no machine; it ends the pauses before a process starts again",
	"worker/supervisor tailBytes":      "it cuts texts for people",
	"worker/supervisor headBytes":      "it cuts texts for people",
	"worker/supervisor outputTimeout":  "it protects against processes that keep a pipe open",
	"worker/supervisor outputBuffer":   "it is a buffer of a pipe",
	"worker/supervisor leaveTimeout":   "it protects against a worker that does not end",
	"worker/supervisor silent":         "it is the default of a setting",
	"worker/supervisor reportWait":     "it protects a restart from a scheduler that does not answer",
	"worker/supervisor reportTimeout":  "it protects a restart from a scheduler that does not answer",
}

// TestThresholdsAreNamed: a decision on a number of bytes or on a time belongs to a machine, where
// tests see it. A loop has such a number only if loopThresholds gives a reason. An adapter may
// protect a foreign thing or a message by one: a constant with a comment that says what it limits.
func TestThresholdsAreNamed(t *testing.T) {
	used := map[string]bool{}
	for _, p := range loadModule(t) {
		kind := p.kind()
		if kind != "Loop" && kind != "Adapter" || !under(p.dir, "server", "worker", "transfer", "memory") {
			continue
		}
		for _, found := range thresholds(p.fset, p.files) {
			key := p.dir + " " + found.name
			switch {
			case found.name == "":
				t.Errorf("%s: a number of bytes or a time without a name: let a machine decide, or make it a constant with a comment", found.at)
			case kind == "Loop" && loopThresholds[key] == "":
				t.Errorf("%s: the threshold %s of a loop: let a machine decide, or add %q to loopThresholds with the reason", found.at, found.name, key)
			case !found.told:
				t.Errorf("%s: the threshold %s has no comment that says what it limits, and why", found.at, found.name)
			}
			used[key] = true
		}
	}
	for key := range loopThresholds {
		if !used[key] {
			t.Errorf("loopThresholds names %q, which is not in the code", key)
		}
	}
}

// threshold is a number of bytes or a time in the code. name is the constant or the variable of the
// package that has it, "" for none; told: it has a comment.
type threshold struct {
	at   token.Position
	name string
	told bool
}

// thresholds returns those of some files, in order.
func thresholds(fset *token.FileSet, files []*ast.File) (all []threshold) {
	for _, f := range files {
		s := &thresholdSearch{fset: fset, timeName: importName(f, "time")}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && (g.Tok == token.CONST || g.Tok == token.VAR) {
				s.named(g)
			} else {
				s.visit(d, "", false)
			}
		}
		all = append(all, s.found...)
	}
	return all
}

type thresholdSearch struct {
	fset     *token.FileSet
	timeName string // the name of package time in the file, "" if it is not imported
	found    []threshold
}

// named visits constants or variables, which have their own names. A comment above one also covers
// the lines right below that one.
func (s *thresholdSearch) named(g *ast.GenDecl) {
	covered := -1 // the last line of a group that has a comment
	if g.Doc != nil && len(g.Specs) > 0 {
		covered = s.line(g.Specs[0].Pos()) - 1
	}
	for _, spec := range g.Specs {
		v := spec.(*ast.ValueSpec)
		if v.Doc != nil || s.line(v.Pos()) == covered+1 {
			covered = s.line(v.End())
		}
		told := v.Comment != nil || covered == s.line(v.End())
		for i, value := range v.Values {
			s.visit(value, v.Names[i%len(v.Names)].Name, told)
		}
	}
}

func (s *thresholdSearch) line(p token.Pos) int {
	return s.fset.Position(p).Line
}

// visit looks for literal numbers times a unit of time, for such units as values, and for literal
// numbers that are shifted by 10, 20, 30 or 40 bits.
func (s *thresholdSearch) visit(root ast.Node, name string, told bool) {
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			if n.Tok == token.CONST {
				s.named(n)
				return false
			}
		case *ast.BinaryExpr:
			left, right := s.isUnit(n.X), s.isUnit(n.Y)
			switch {
			case n.Op == token.SHL && isNumber(n.X) && isOneOf(n.Y, "10", "20", "30", "40"),
				(n.Op == token.MUL || n.Op == token.QUO) && left && isNumber(n.Y),
				n.Op == token.MUL && isNumber(n.X) && right:
				s.add(n, name, told)
				return false
			case n.Op == token.MUL && left, n.Op == token.QUO && left: // it converts
				s.visit(n.Y, name, told)
				return false
			case (n.Op == token.MUL || n.Op == token.QUO || n.Op == token.REM) && right:
				s.visit(s.withoutUnit(n.X), name, told)
				return false
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "Round" || f.Sel.Name == "Truncate") {
				s.visit(f.X, name, told) // the argument is a precision
				return false
			}
			if f, ok := n.Fun.(*ast.Ident); ok && len(n.Args) == 1 && s.isUnit(n.Args[0]) && slices.Contains([]string{"float64", "int64", "uint64", "int"}, f.Name) {
				return false // float64(time.Second) converts
			}
		case *ast.SelectorExpr:
			if s.isUnit(n) {
				s.add(n, name, told)
			}
		}
		return true
	})
}

func (s *thresholdSearch) add(n ast.Node, name string, told bool) {
	s.found = append(s.found, threshold{at: s.fset.Position(n.Pos()), name: name, told: told})
}

// withoutUnit returns d of (d + unit - 1): divided by the unit, it is rounded up.
func (s *thresholdSearch) withoutUnit(e ast.Expr) ast.Expr {
	p, ok := e.(*ast.ParenExpr)
	if !ok {
		return e
	}
	if less, ok := p.X.(*ast.BinaryExpr); ok && less.Op == token.SUB {
		if sum, ok := less.X.(*ast.BinaryExpr); ok && sum.Op == token.ADD && s.isUnit(sum.Y) {
			return sum.X
		}
	}
	return e
}

// isUnit reports a unit of time. A nanosecond converts, and limits nothing.
func (s *thresholdSearch) isUnit(e ast.Expr) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || s.timeName == "" {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == s.timeName && slices.Contains([]string{"Microsecond", "Millisecond", "Second", "Minute", "Hour"}, sel.Sel.Name)
}

// isNumber reports a literal number, or a product of such.
func isNumber(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Kind == token.INT || e.Kind == token.FLOAT
	case *ast.BinaryExpr:
		return isNumber(e.X) && isNumber(e.Y)
	}
	return false
}

func isOneOf(e ast.Expr, values ...string) bool {
	l, ok := e.(*ast.BasicLit)
	return ok && slices.Contains(values, l.Value)
}

// The rule itself is tested with code that breaks it.
func TestThresholdsAreFound(t *testing.T) {
	for code, want := range map[string]string{
		"const limit = 4 << 20":                                              "limit",
		"// Because.\nconst wait = 3 * time.Second":                          "wait told",
		"const (\n\t// a is because.\n\ta = time.Second\n)":                  "a told",
		"const beat = time.Second // because":                                "beat told",
		"const (\n\t// Both.\n\ta = time.Hour\n\tb = 1 << 20\n)":             "a told,b told",
		"const (\n\t// One.\n\ta = time.Hour\n\n\tb = 1 << 20\n)":            "a told,b",
		"const (\n\ta = time.Hour // one\n\tb = 1 << 20\n)":                  "a told,b",
		"// All.\nconst (\n\ta = time.Hour\n\n\tb = 1 << 20\n)":              "a told,b",
		"const year = 365 * 24 * time.Hour":                                  "year",
		"var x, y = time.Hour, 1 << 20":                                      "x,y",
		"func f() { g(time.Minute) }":                                        "-",
		"func f() { const own = 1 << 10; g(own) }":                           "own",
		"func f() { x := cmp.Or(c.Wait, 2*time.Second) }":                    "-",
		"func f(d time.Duration) bool { return d > time.Second }":            "-",
		"func f() { g(time.Second / 2) }":                                    "-",
		"func f(d time.Duration) { g((d + time.Second).Round(d)) }":          "-",
		"func f(d time.Duration) { g(d.Round(time.Second)) }":                "",
		"func f(n int) { g(time.Duration(n) * time.Second) }":                "",
		"func f(n int) { g(time.Duration(n + 1<<20) * time.Second) }":        "-",
		"func f(d time.Duration) { g(d / time.Second, d%time.Second) }":      "",
		"func f(d time.Duration) { g((d + time.Second - 1) / time.Second) }": "",
		"func f(n int) { g(n << 10) }":                                       "",
		"func f() { g(1 << 3) }":                                             "",
		"func f(d float64) { g(d * float64(time.Second)) }":                  "",
	} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "x.go", "package x\n\nimport \"time\"\n\n"+code, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, th := range thresholds(fset, []*ast.File{f}) {
			text := "-"
			if th.name != "" {
				text = th.name
			}
			if th.told {
				text += " told"
			}
			got = append(got, text)
		}
		if found := strings.Join(got, ","); found != want {
			t.Errorf("%s: found %q, want %q", code, found, want)
		}
	}
}
