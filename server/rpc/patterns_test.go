package rpc

import (
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The error about a text that breaks a pattern names the forbidden part of the text, and does not
// show a regular expression.
func TestErrorsSayPatternsInWords(t *testing.T) {
	validator, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("millrace.v1", func(file protoreflect.FileDescriptor) bool {
		messages := file.Messages()
		for i := range messages.Len() {
			fields := messages.Get(i).Fields()
			for j := range fields.Len() {
				f := fields.Get(j)
				rules, _ := proto.GetExtension(f.Options(), validate.E_Field).(*validate.FieldRules)
				if rules.GetString().GetPattern() == "" {
					continue
				}
				found++
				m := dynamicpb.NewMessage(messages.Get(i))
				for k := range fields.Len() {
					switch other := fields.Get(k); { // Another field may be required.
					case other.IsList() || other.IsMap():
					case other.Kind() == protoreflect.StringKind:
						m.Set(other, protoreflect.ValueOfString("x"))
					case other.Kind() == protoreflect.Uint32Kind:
						m.Set(other, protoreflect.ValueOfUint32(1))
					}
				}
				m.Set(f, protoreflect.ValueOfString("a\nb"))
				err := validation{validator: validator}.check(t.Context(), m)
				if err == nil || !strings.Contains(err.Error(), string(f.Name())+": it has ") || !strings.Contains(err.Error(), "leave those out") {
					t.Errorf("%s: %v", f.FullName(), err)
				}
			}
		}
		return true
	})
	if found == 0 {
		t.Error("no field has a pattern")
	}
}
