package purity

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is the longest line of a comment. A tab counts 4 columns.
const maxColumns = 100

// directives are comments for tools. They may be longer and are not sentences.
var directives = regexp.MustCompile(`^//(go:|nolint|export )|//nolint|^# (noqa|type:|pyright:)`)

// headless matches a sentence whose subject is a relative clause: the reader has to find out first
// what it refers to.
var headless = regexp.MustCompile(`(^|[.:;!?] )(Who|Whoever|Whose|What|Whatever) `)

// checkLine reports what is wrong with one line of a comment, as it stands in the file. text is the
// line without the marker of the comment.
func checkLine(t *testing.T, file string, number int, line, text string) {
	t.Helper()
	if directives.MatchString(strings.TrimSpace(line)) {
		return
	}
	if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); n > maxColumns {
		t.Errorf("%s:%d: a comment of %d columns; %d are allowed", file, number, n, maxColumns)
	}
	if found := headless.FindString(text); found != "" {
		t.Errorf("%s:%d: a sentence begins with %q: begin with the noun that it is about", file, number, strings.TrimSpace(strings.Trim(found, ".:;!?")))
	}
}

// sources calls visit for each file of the repository with one of the endings. It leaves out
// generated code and the folders of tools.
func sources(t *testing.T, visit func(path, name string), endings ...string) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			if name != "." && (base[0] == '.' || base == "node_modules" || base == "_pb" || base == "build" || name == "gen") {
				return filepath.SkipDir
			}
			return nil
		}
		for _, ending := range endings {
			if strings.HasSuffix(name, ending) {
				visit(path, filepath.ToSlash(name))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCommentsOfGoArePlain(t *testing.T) {
	sources(t, func(path, name string) {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(source), "\n")
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		preamble := preambleOf(file)
		for _, group := range file.Comments {
			if group == preamble {
				continue
			}
			for _, comment := range group.List {
				from := fset.Position(comment.Pos()).Line
				for i, text := range strings.Split(comment.Text, "\n") {
					line := lines[from+i-1]
					if !strings.HasPrefix(strings.TrimSpace(line), "//") {
						line = "" // code with a comment behind it: the formatter decides on its length
					}
					checkLine(t, name, from+i, line, strings.TrimSpace(strings.TrimLeft(text, "/* \t")))
				}
			}
		}
	}, ".go")
}

// preambleOf returns the C code above import "C", or nil.
func preambleOf(file *ast.File) *ast.CommentGroup {
	for _, decl := range file.Decls {
		if g, ok := decl.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			for _, spec := range g.Specs {
				if s, ok := spec.(*ast.ImportSpec); ok && s.Path.Value == `"C"` {
					if s.Doc != nil {
						return s.Doc
					}
					return g.Doc
				}
			}
		}
	}
	return nil
}

func TestCommentsOfPythonArePlain(t *testing.T) {
	sources(t, func(path, name string) {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(source), "\n") {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
				checkLine(t, name, i+1, line, strings.TrimSpace(strings.TrimPrefix(text, ":")))
			}
		}
	}, ".py")
}

func TestPlainCommentsAreToldFromOthers(t *testing.T) {
	for text, want := range map[string]bool{
		"Who waits is told.":                          true,
		"It is over. Whoever asks is answered.":       true,
		"Errors: What is lost stays lost.":            true,
		"The reader that waits is notified.":          false,
		"WhoAmI returns the name.":                    false,
		"It tells the caller what to do.":             false,
		"Whether it is there is found out by asking.": false,
	} {
		if got := headless.MatchString(text); got != want {
			t.Errorf("%q: headless %v", text, got)
		}
	}
}
