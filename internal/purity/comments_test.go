package purity

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is the longest line of a comment. A tab counts 4 columns.
const maxColumns = 100

// directives are comments for tools. They may be longer and are not sentences.
var directives = regexp.MustCompile(`^//(go:|nolint|export )|//nolint|^# (noqa|type:|pyright:|shellcheck)|^#!`)

// headless matches a sentence whose subject is a relative clause: the reader must first find out
// the thing that the clause refers to. The last word of the pattern is refused in any place.
var headless = regexp.MustCompile(`(^|[.:;!?] )(Who|Whose|What|Whatever|Where) |\b[Ww]hoever\b`)

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
		t.Errorf("%s:%d: a clause begins with %q: begin with the noun that it is about", file, number, strings.TrimSpace(strings.Trim(found, ".:;!?")))
	}
}

// sources calls visit for each file of the repository with one of the endings. See files.
func sources(t *testing.T, visit func(path, name string), endings ...string) {
	t.Helper()
	files(t, func(path, name string) {
		if slices.ContainsFunc(endings, func(ending string) bool { return strings.HasSuffix(name, ending) }) {
			visit(path, name)
		}
	})
}

// untracked are the folders for the results of builds and tests.
var untracked = []string{"bin", "build", "dist", "out", "examples/java/protos", "examples/java/target", "examples/node/protos"}

// files calls visit for each file of the repository, without generated code and the folders of
// tools. path opens it, name is relative to the root of the repository.
func files(t *testing.T, visit func(path, name string)) {
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
			if name != "." && (base[0] == '.' && base != ".ci" || base == "node_modules" || base == "_pb" || slices.Contains(untracked, name) || name == "gen") {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() {
			visit(path, filepath.ToSlash(name))
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

// testName matches the names of tests, of fuzz targets and of Python tests that begin with a
// relative clause.
var testName = regexp.MustCompile(`^func (?:Test|Fuzz|Benchmark)(?:GPU)?(?:Who|Whoever|Whose|What|Whatever|Where)[A-Z]|^(?:async )?def test_(?:who|whoever|whose|what|whatever|where)_`)

// TestNamesOfTestsHaveSubjects: a name of a test states a behaviour, and begins with its subject.
func TestNamesOfTestsHaveSubjects(t *testing.T) {
	sources(t, func(path, name string) {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(source), "\n") {
			if testName.MatchString(line) {
				t.Errorf("%s:%d: %s: begin the name with its subject", name, i+1, strings.TrimSuffix(line, " {"))
			}
		}
	}, "_test.go", ".py")
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
		for _, d := range docstringsOf(string(source)) {
			for i, line := range strings.Split(d.text, "\n") {
				checkLine(t, name, d.line+i, line, strings.TrimSpace(line))
			}
		}
	}, ".py")
}

// docstringsOf returns the strings in three double quotes that begin a line.
func docstringsOf(source string) (found []sentence) {
	line, before := 1, ""
	for i, part := range strings.Split(source, `"""`) {
		if i%2 == 1 && strings.TrimSpace(before[strings.LastIndexByte(before, '\n')+1:]) == "" {
			found = append(found, sentence{line, part})
		}
		line += strings.Count(part, "\n")
		before = part
	}
	return found
}

// cComments matches the comments of C, CUDA C++, protos, Java and JavaScript, and string literals,
// which may contain the markers of comments.
var cComments = regexp.MustCompile(`//[^\n]*|(?s:/\*.*?\*/)|"(?:[^"\\\n]|\\.)*"`)

func TestCommentsOfCAndItsRelativesArePlain(t *testing.T) {
	sources(t, func(path, name string) {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(source), "\n")
		for _, at := range cComments.FindAllIndex(source, -1) {
			comment := string(source[at[0]:at[1]])
			if comment[0] == '"' {
				continue
			}
			start := bytes.LastIndexByte(source[:at[0]], '\n') + 1
			first := bytes.Count(source[:start], []byte("\n"))
			for i, text := range strings.Split(comment, "\n") {
				line := lines[first+i]
				if i == 0 && strings.TrimSpace(string(source[start:at[0]])) != "" {
					line = "" // code with a comment behind it: the formatter decides on its length
				}
				checkLine(t, name, first+i+1, line, strings.Trim(text, "/* \t"))
			}
		}
	}, ".c", ".h", ".cu", ".cuh", ".proto", ".java", ".js")
}

// isScript tells whether a file is a shell script: some have no ending, but a first line that names
// the shell.
func isScript(source []byte) bool {
	first, _, _ := bytes.Cut(source, []byte("\n"))
	return bytes.HasPrefix(first, []byte("#!")) && bytes.HasSuffix(first, []byte("sh"))
}

// golden matches the names of the golden scripts of machines.
var golden = regexp.MustCompile(`/testdata/(scripts/)?[\w-]+$`)

// TestCommentsOfScriptsArePlain checks the full-line comments of shell scripts, of the Makefile, of
// settings and of golden scripts. A # behind code can be part of the code, so it is not taken for a
// comment.
func TestCommentsOfScriptsArePlain(t *testing.T) {
	endings := []string{"Makefile", ".sh", ".yml", ".yaml", ".toml", ".in", ".lock"}
	files(t, func(path, name string) {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(endings, func(ending string) bool { return strings.HasSuffix(name, ending) }) && !isScript(source) && !golden.MatchString(name) {
			return
		}
		for i, line := range strings.Split(string(source), "\n") {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
				checkLine(t, name, i+1, line, strings.TrimSpace(text))
			}
		}
	})
}

// sentence is a text of a Markdown file that headless can check: a paragraph, a list item or a cell
// of a table.
type sentence struct {
	line int
	text string
}

var (
	listItem     = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	tableRule    = regexp.MustCompile(`^\|[-|: ]+\|$`)
	cellBoundary = regexp.MustCompile(`(?:^|[^\\])\|`)
	question     = regexp.MustCompile(`^[^.:;!?]*\?`)
)

// proseOf returns the texts of a Markdown file, and the numbers of lines that are too long. The
// texts do not include headings and the first rows of tables. Lines of tables, of code and with
// links have no limit of columns.
func proseOf(source string) (texts []sentence, long []int) {
	lines := strings.Split(source, "\n")
	fenced, inside := false, false
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fenced, inside = !fenced, false
		case fenced || strings.HasPrefix(line, "    "):
		case trimmed == "" || strings.HasPrefix(line, "#"):
			inside = false
		case strings.HasPrefix(trimmed, "|"):
			inside = false
			if i+1 < len(lines) && tableRule.MatchString(lines[i+1]) {
				continue
			}
			for _, cell := range cellBoundary.Split(trimmed, -1) {
				texts = append(texts, sentence{i + 1, strings.TrimSpace(cell)})
			}
		default:
			if utf8.RuneCountInString(line) > maxColumns && !strings.Contains(line, "](") && !strings.Contains(line, "://") {
				long = append(long, i+1)
			}
			if item := listItem.FindString(line); item != "" || !inside {
				texts = append(texts, sentence{i + 1, strings.TrimSpace(line[len(item):])})
			} else {
				texts[len(texts)-1].text += " " + trimmed
			}
			inside = true
		}
	}
	return texts, long
}

// headlessIn returns the first words of those sentences in a text that begin with a relative
// clause. Questions may begin in this way.
func headlessIn(text string) (found []string) {
	for _, at := range headless.FindAllStringIndex(text, -1) {
		if !question.MatchString(text[at[1]:]) {
			found = append(found, strings.TrimSpace(strings.Trim(text[at[0]:at[1]], ".:;!? ")))
		}
	}
	return found
}

func TestMarkdownIsPlain(t *testing.T) {
	sources(t, func(path, name string) {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts, long := proseOf(string(source))
		for _, line := range long {
			t.Errorf("%s:%d: a line of more than %d columns", name, line, maxColumns)
		}
		for _, s := range texts {
			for _, word := range headlessIn(s.text) {
				t.Errorf("%s:%d: a clause begins with %q: begin with the noun that it is about", name, s.line, word)
			}
		}
	}, ".md")
}

func TestProseIsToldFromTheRestOfMarkdown(t *testing.T) {
	long := strings.Repeat("long ", 21)
	texts, tooLong := proseOf(strings.Join([]string{
		"# What it does", // a heading
		"First line,",
		"Where second. What third?",
		"",
		"- Who is an item.",
		"| What | heads |",
		"|---|---|",
		"| Whatever is a cell. | " + long + "|",
		"    What is code " + long,
		"```",
		"What is code " + long,
		"```",
		"[a link](" + long + ")",
		long,
	}, "\n"))
	var found []string
	for _, s := range texts {
		for _, word := range headlessIn(s.text) {
			found = append(found, fmt.Sprint(s.line, " ", word))
		}
	}
	if want := []string{"5 Who", "8 Whatever"}; !slices.Equal(found, want) {
		t.Errorf("%q, want %q", found, want)
	}
	if !slices.Equal(tooLong, []int{14}) {
		t.Errorf("long lines %v, want 14", tooLong)
	}
}

func TestPlainCommentsAreToldFromOthers(t *testing.T) {
	for text, want := range map[string]bool{
		"Who waits is told.":                          true,
		"It is over. Whoever asks is answered.":       true,
		"Errors: What is lost stays lost.":            true,
		"It is kept: whoever asks finds it.":          true,
		"The reader that waits is notified.":          false,
		"Where its frames lie.":                       true,
		"WhoAmI returns the name.":                    false,
		"It tells the caller what to do.":             false,
		"Whether it is there is found out by asking.": false,
	} {
		if got := headless.MatchString(text); got != want {
			t.Errorf("%q: headless %v", text, got)
		}
	}
}
