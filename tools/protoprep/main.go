// Package main is Test support: it prepares protobuf descriptors for the code generators.
//
//	protoprep validate OUT    writes OUT/buf/validate/validate.proto
//	protoprep strip IN OUT    copies a file descriptor set without buf.validate
//	protoprep public SRC OUT PACKAGE...
//	                          copies .proto files without buf.validate
//	protoprep compare A B     fails if a file of set B differs from that of set A
//
// validate prints the file from the descriptor in the pinned protovalidate module, so that it need
// not be committed. strip removes the file, its imports and its options. public does the same with
// the text of files; the folders PACKAGE are below SRC.
//
// Python stubs are generated from the stripped set. If validate.proto were generated, too, a
// program that also installs protovalidate would register the file twice in the default descriptor
// pool, and would fail at import.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/jhump/protoreflect/v2/protoprint"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

const (
	validateFile   = "buf/validate/validate.proto"
	validateModule = "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "protoprep:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "validate":
		return printValidate(args[1])
	case len(args) == 3 && args[0] == "strip":
		return stripValidate(args[1], args[2])
	case len(args) > 3 && args[0] == "public":
		return stripFiles(args[1], args[2], args[3:])
	case len(args) == 3 && args[0] == "compare":
		return compareSets(args[1], args[2])
	default:
		return fmt.Errorf("usage: protoprep validate OUT | strip IN OUT | public SRC OUT PACKAGE... | compare A B")
	}
}

// printValidate REQUIRES the repository root as working directory.
func printValidate(out string) error {
	if err := checkPins(); err != nil {
		return err
	}
	path := filepath.Join(out, filepath.FromSlash(validateFile))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	printer := protoprint.Printer{}
	if err := printer.PrintProtoFile(validate.File_buf_validate_validate_proto, f); err != nil {
		return fmt.Errorf("print %s: %w", validateFile, err)
	}
	return f.Close()
}

// checkPins compares the commit of the protovalidate schema in this program with the one that the
// main module uses. A rule that only one side knows would be dropped in silence.
func checkPins() error {
	gomod, err := os.ReadFile("go.mod")
	if err != nil {
		return fmt.Errorf("read the main module's go.mod (run from the repository root): %w", err)
	}
	m := regexp.MustCompile(regexp.QuoteMeta(validateModule) + ` v[0-9.]+-([0-9]+-[0-9a-f]+)`).FindSubmatch(gomod)
	if m == nil {
		return fmt.Errorf("go.mod does not require %s", validateModule)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Errorf("this binary has no build information; build it in module mode")
	}
	for _, dep := range info.Deps {
		if dep.Path == validateModule && !strings.Contains(dep.Version, string(m[1])) {
			return fmt.Errorf("go.mod pins %s at schema %s but tools/go.mod at %s; pin both to the same one", validateModule, m[1], dep.Version)
		}
	}
	return nil
}

func stripValidate(in, out string) error {
	set, err := readSet(in)
	if err != nil {
		return err
	}
	set.File = slices.DeleteFunc(set.File, func(f *descriptorpb.FileDescriptorProto) bool { return f.GetName() == validateFile })
	for _, f := range set.File {
		dropImport(f)
		dropOptions(f.ProtoReflect())
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err != nil {
		return err
	}
	return os.WriteFile(out, raw, 0o644)
}

// dropImport removes the import of validate.proto. Public and weak imports are stored by index, so
// they are renumbered.
func dropImport(f *descriptorpb.FileDescriptorProto) {
	at := slices.Index(f.Dependency, validateFile)
	if at < 0 {
		return
	}
	f.Dependency = slices.Delete(f.Dependency, at, at+1)
	for _, list := range [][]int32{f.PublicDependency, f.WeakDependency} {
		for i, n := range list {
			if int(n) > at {
				list[i] = n - 1
			}
		}
	}
}

// dropOptions removes extension fields of buf.validate from every options message in m.
func dropOptions(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsExtension() && strings.HasPrefix(string(fd.FullName()), "buf.validate."):
			m.Clear(fd)
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				dropOptions(v.List().Get(i).Message())
			}
		default:
			dropOptions(v.Message())
			// An options message without any other option is removed, too: generators would emit
			// code for empty options.
			if strings.HasSuffix(string(fd.Message().Name()), "Options") && proto.Size(v.Message().Interface()) == 0 {
				m.Clear(fd)
			}
		}
		return true
	})
}
