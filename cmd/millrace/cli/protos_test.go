package cli

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/gen/protos"
)

var importLine = regexp.MustCompile(`(?m)^import "(.*)";`)

func TestProtosNeedNothingElse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "api")
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs}
	write := func() {
		t.Helper()
		out.Reset()
		errs.Reset()
		if err := a.writeProtos(dir); err != nil {
			t.Fatal(err)
		}
	}
	write()
	services, files := "", 0
	if err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		for _, m := range importLine.FindAllSubmatch(text, -1) {
			imported := string(m[1])
			if _, err := fs.Stat(os.DirFS(dir), imported); err != nil && !strings.HasPrefix(imported, "google/protobuf/") {
				t.Errorf("%s imports %s, which is not there", name, imported)
			}
		}
		if bytes.Contains(text, []byte("buf.validate")) {
			t.Errorf("%s has validation rules", name)
		}
		services += string(text)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"service SchedulerService {", "service DataService {", "message ToExecutor {"} {
		if !strings.Contains(services, service) {
			t.Errorf("nowhere: %s", service)
		}
	}
	if got := out.String(); files < 5 || !strings.Contains(got, filepath.Join(dir, "millrace", "v1")) || errs.Len() > 0 {
		t.Errorf("%d files; it says %q, %q", files, got, errs.String())
	}

	// A second call replaces the files, and names those that no version of today has.
	task, other := filepath.Join(dir, "millrace", "v1", "task.proto"), filepath.Join(dir, "millrace", "v1", "other.proto")
	for _, name := range []string{task, other} {
		if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	want, err := protos.Files.ReadFile("millrace/v1/task.proto")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(task); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s was not replaced: %v", task, err)
	}
	if got := errs.String(); !strings.Contains(got, other) || strings.Count(got, "\n") != 1 {
		t.Errorf("about the other file: %q", got)
	}
	if got, err := os.ReadFile(other); err != nil || string(got) != "old" {
		t.Errorf("%s was changed: %v", other, err)
	}

	if err := a.writeProtos(task); err == nil || !strings.Contains(err.Error(), task) {
		t.Errorf("into a file: %v", err)
	}
}
