package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile/ast"
	"github.com/bufbuild/protocompile/parser"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// stripFiles copies the .proto files of some packages from the folder src to the folder out,
// without buf.validate. The packages are paths below src. Each file must be complete with the
// copied files and the well-known types of protobuf, so that protoc needs nothing else.
func stripFiles(src, out string, packages []string) error {
	copied := map[string][]string{} // the imports of each file
	for _, p := range packages {
		names, err := fs.Glob(os.DirFS(src), path.Join(p, "*.proto"))
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return fmt.Errorf("%s: no .proto files", filepath.Join(src, p))
		}
		for _, name := range names {
			source, err := os.ReadFile(filepath.Join(src, name))
			if err != nil {
				return err
			}
			text, imports, err := stripText(name, source)
			if err != nil {
				return err
			}
			to := filepath.Join(out, name)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(to, text, 0o644); err != nil {
				return err
			}
			copied[name] = imports
		}
	}
	var errs []error
	for name, imports := range copied {
		for _, i := range imports {
			if _, ok := copied[i]; !ok && !strings.HasPrefix(i, "google/protobuf/") {
				errs = append(errs, fmt.Errorf("%s imports %s, which is in none of the public packages (%s): move what it needs into one of them",
					name, i, strings.Join(packages, ", ")))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// edit replaces a range of bytes by a text.
type edit struct {
	from, to int
	by       string
}

// stripText removes the import of validate.proto and the options of buf.validate from the text of a
// file. All else stays as it is. It also returns the imports that are left.
func stripText(name string, source []byte) (text []byte, imports []string, err error) {
	file, err := parser.Parse(name, bytes.NewReader(source), reporter.NewHandler(nil))
	if err != nil {
		return nil, nil, err
	}
	span := func(n ast.Node) (from, to int) {
		info := file.NodeInfo(n)
		from = info.Start().Offset
		return from, from + len(info.RawText())
	}
	var edits []edit
	// statement removes a whole statement, with its comments and its line.
	statement := func(n ast.Node) {
		from, to := span(n)
		if before := file.NodeInfo(n).LeadingComments(); before.Len() > 0 {
			from = before.Index(0).Start().Offset
		}
		for from > 0 && (source[from-1] == ' ' || source[from-1] == '\t') {
			from--
		}
		if end := bytes.IndexByte(source[to:], '\n'); end >= 0 && len(bytes.TrimSpace(source[to:to+end])) == 0 {
			to += end + 1
		}
		edits = append(edits, edit{from: from, to: to})
	}
	err = ast.Walk(file, &ast.SimpleVisitor{
		DoVisitImportNode: func(n *ast.ImportNode) error {
			if n.Name.AsString() == validateFile {
				statement(n)
			} else {
				imports = append(imports, n.Name.AsString())
			}
			return nil
		},
		DoVisitOptionNode: func(n *ast.OptionNode) error {
			if n.Keyword != nil && isValidation(n) {
				statement(n)
			}
			return nil
		},
		DoVisitCompactOptionsNode: func(n *ast.CompactOptionsNode) error {
			var kept []string
			for _, o := range n.Options {
				if !isValidation(o) {
					from, to := span(o)
					kept = append(kept, string(source[from:to]))
				}
			}
			from, to := span(n)
			switch len(kept) {
			case len(n.Options):
			case 0:
				from = len(bytes.TrimRight(source[:from], " \t\r\n"))
				edits = append(edits, edit{from: from, to: to})
			default:
				edits = append(edits, edit{from: from, to: to, by: "[" + strings.Join(kept, ", ") + "]"})
			}
			return nil
		},
	})
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	at := 0
	for _, e := range edits {
		text = append(append(text, source[at:e.from]...), e.by...)
		at = e.to
	}
	return append(text, source[at:]...), imports, nil
}

// isValidation reports whether an option is an extension of buf.validate.
func isValidation(n *ast.OptionNode) bool {
	first := n.Name.Parts[0]
	return first.IsExtension() && strings.HasPrefix(strings.TrimPrefix(string(first.Name.AsIdentifier()), "."), "buf.validate.")
}

// compareSets returns an error if a file of the second set is not the same in the first one, with
// its comments. Positions in the source may differ.
func compareSets(whole, part string) error {
	a, err := readSet(whole)
	if err != nil {
		return err
	}
	b, err := readSet(part)
	if err != nil {
		return err
	}
	if len(b.GetFile()) == 0 {
		return fmt.Errorf("%s: no files", part)
	}
	for _, f := range b.GetFile() {
		at := slices.IndexFunc(a.GetFile(), func(g *descriptorpb.FileDescriptorProto) bool { return g.GetName() == f.GetName() })
		if at < 0 {
			return fmt.Errorf("%s: %s has no such file", f.GetName(), whole)
		}
		g := a.GetFile()[at]
		reduceSource(f)
		reduceSource(g)
		if !proto.Equal(f, g) {
			return fmt.Errorf("%s differs between %s and %s: %s", f.GetName(), whole, part, difference(g, f))
		}
	}
	return nil
}

func readSet(name string) (*descriptorpb.FileDescriptorSet, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	set := new(descriptorpb.FileDescriptorSet)
	if err := proto.Unmarshal(raw, set); err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	return set, nil
}

// reduceSource keeps the comments of a file's source information, without their positions.
func reduceSource(f *descriptorpb.FileDescriptorProto) {
	if f.SourceCodeInfo == nil {
		f.SourceCodeInfo = new(descriptorpb.SourceCodeInfo)
	}
	f.SourceCodeInfo.Location = slices.DeleteFunc(f.GetSourceCodeInfo().GetLocation(), func(l *descriptorpb.SourceCodeInfo_Location) bool {
		l.Span = nil
		return l.LeadingComments == nil && l.TrailingComments == nil && len(l.GetLeadingDetachedComments()) == 0
	})
	slices.SortFunc(f.GetSourceCodeInfo().GetLocation(), func(a, b *descriptorpb.SourceCodeInfo_Location) int {
		return slices.Compare(a.GetPath(), b.GetPath())
	})
}

// difference returns the first lines in which the texts of two messages differ.
func difference(a, b proto.Message) string {
	one, two := strings.Split(prototext.Format(a), "\n"), strings.Split(prototext.Format(b), "\n")
	for i := range min(len(one), len(two)) {
		// The format has random spaces, so that nobody relies on it.
		if x, y := strings.Fields(one[i]), strings.Fields(two[i]); !slices.Equal(x, y) {
			return fmt.Sprintf("%q, %q", strings.Join(x, " "), strings.Join(y, " "))
		}
	}
	return "one of them has more"
}
