package cli

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

func someFile(n int) millrace.SchedulerFile {
	return millrace.SchedulerFile{ID: "life", Address: "127.0.0.1:7786", Token: "t", PID: n}
}

// A running scheduler keeps its file, a dead one loses it, and each removes only its own file.
func TestSchedulerFilesHaveOneOwner(t *testing.T) {
	name := filepath.Join(t.TempDir(), "s.json")
	first, err := holdFile(name, someFile(1))
	if err != nil {
		t.Fatal(err)
	}
	_, err = holdFile(name, someFile(2))
	if err == nil || exitCode(err) != exitUsage || strings.Count(err.Error(), "--scheduler-file") != 1 {
		t.Fatalf("a second owner: %v", err)
	}
	for _, want := range []string{name, "127.0.0.1:7786", "pid 1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	_ = first.file.Close() // the lock is released, as when the process dies
	second, err := holdFile(name, someFile(3))
	if err != nil {
		t.Fatal(err)
	}
	if content, err := millrace.ReadSchedulerFile(name); err != nil || content.PID != 3 {
		t.Errorf("got %+v, %v", content, err)
	}
	// Another process puts another file in its place.
	if err := os.WriteFile(name+".new", []byte(`{"address":"elsewhere:1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
	second.remove()
	if _, err := os.Stat(name); err != nil {
		t.Errorf("a foreign file was removed: %v", err)
	}
	third, err := holdFile(name, someFile(4))
	if err != nil {
		t.Fatal(err)
	}
	third.remove()
	if left, _ := os.ReadDir(filepath.Dir(name)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// If several schedulers start at the same time, one of them gets the file, and the others are
// refused.
func TestOneOfManyGetsTheSchedulerFile(t *testing.T) {
	for _, stale := range []string{"", `{"address":"a:1","pid":1}`} {
		name := filepath.Join(t.TempDir(), "s.json")
		if stale != "" {
			if err := os.WriteFile(name, []byte(stale), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var held [20]*heldFile
		var all sync.WaitGroup
		for i := range held {
			all.Go(func() { held[i], _ = holdFile(name, someFile(i)) })
		}
		all.Wait()
		owners := 0
		for i, h := range held {
			if h == nil {
				continue
			}
			owners++
			if content, err := millrace.ReadSchedulerFile(name); err != nil || content.PID != i {
				t.Errorf("the file is of %+v, %v, and %d has it", content, err, i)
			}
			h.remove()
		}
		if owners != 1 {
			t.Errorf("%d owners", owners)
		}
	}
}

// Only a scheduler file is ever replaced.
func TestOtherFilesAreNotReplaced(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(other, []byte("years of work\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		other:                              "its content is not that of a scheduler file",
		dir:                                "it is not a regular file",
		"/dev/null":                        "it is not a regular file",
		filepath.Join(dir, "no", "s.json"): "no such file or directory",
	} {
		if _, err := holdFile(name, someFile(1)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--scheduler-file") {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := holdFile(empty, someFile(1))
	if err != nil {
		t.Fatal(err)
	}
	h.remove()
}
