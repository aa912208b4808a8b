package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOnlyValidationIsRemovedFromTheText(t *testing.T) {
	const before = `// About the file.
syntax = "proto3";

package p;

import "a.proto"; // the first
// For the rules.
import "buf/validate/validate.proto";
import public "google/protobuf/any.proto";

option java_package = "p";

/* About
   the message. */
message M {
  // A rule over fields.
  option (buf.validate.message).cel = {
    id: "x; ]"
    expression: "this.a > 0"
  };
  option deprecated = true;

  // About a.
  int32 a = 1 [(buf.validate.field).int32.gt = 0]; // behind a
  string b = 2 [
    deprecated = true,
    (buf.validate.field).string = {
      max_len: 1
      pattern: "[a,b];" /* (buf.validate.field) */
    },
    (other.field) = "(buf.validate.field)"
  ];
  oneof c {
    option (.buf.validate.oneof).required = true;
    // About d.
    bytes d = 3
        [(buf.validate.field).required = true];
  }
}
`
	const want = `// About the file.
syntax = "proto3";

package p;

import "a.proto"; // the first
import public "google/protobuf/any.proto";

option java_package = "p";

/* About
   the message. */
message M {
  option deprecated = true;

  // About a.
  int32 a = 1; // behind a
  string b = 2 [deprecated = true, (other.field) = "(buf.validate.field)"];
  oneof c {
    // About d.
    bytes d = 3;
  }
}
`
	got, imports, err := stripText("m.proto", []byte(before))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !slices.Equal(imports, []string{"a.proto", "google/protobuf/any.proto"}) {
		t.Errorf("imports: %v", imports)
	}
	if again, _, err := stripText("m.proto", got); err != nil || string(again) != want {
		t.Errorf("a second time: %v\n%s", err, again)
	}
}

func TestPublicFilesImportOnlyPublicFiles(t *testing.T) {
	src := t.TempDir()
	for name, imported := range map[string]string{
		"p/v1/a.proto": "p/v1/b.proto", "p/v1/b.proto": "google/protobuf/any.proto", "q/v1/c.proto": "p/v1/a.proto", "r/v1/d.proto": "q/v1/c.proto",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(src, name), []byte(`syntax = "proto3"; import "`+imported+`";`), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		packages []string
		want     string
	}{
		{[]string{"p/v1"}, ""},
		{[]string{"p/v1", "q/v1"}, ""},
		{[]string{"p/v1", "r/v1"}, "r/v1/d.proto imports q/v1/c.proto, which is in none of the public packages (p/v1, r/v1)"},
		{[]string{"p/v2"}, "no .proto files"},
	} {
		out := t.TempDir()
		err := stripFiles(src, out, c.packages)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.packages, err, c.want)
		}
		if c.want != "" {
			continue
		}
		if found, err := filepath.Glob(filepath.Join(out, "*", "*", "*.proto")); err != nil || len(found) != len(c.packages)+1 {
			t.Errorf("%v: wrote %v, %v", c.packages, found, err)
		}
	}
}
