package localdir

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func names(t *testing.T, directory string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func make1(t *testing.T, parent, owner string) *Dir {
	t.Helper()
	d, err := Make(parent, owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestCloseLeavesNothing(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "made", "too")
	d := make1(t, parent, "host-0")
	if filepath.Dir(d.Path()) != parent {
		t.Errorf("made at %s", d.Path())
	}
	if err := os.MkdirAll(filepath.Join(d.Path(), "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if n := Clean(parent); n != 0 {
		t.Errorf("%d living directories were removed", n)
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if left := names(t, parent); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestPathsDoNotDependOnWhereOneIs(t *testing.T) {
	t.Chdir(t.TempDir())
	if d := make1(t, "here", "x"); !filepath.IsAbs(d.Path()) {
		t.Errorf("made at %s", d.Path())
	}
}

func TestMakeSaysWhatToChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Make(file, "x"); err == nil {
		t.Error("made below a file")
	}
}

// The directory of a living process stays. That of a dead process is removed, and so is one that
// was not completed, when it is old enough.
func TestCleanRemovesWhatTheDeadLeft(t *testing.T) {
	parent := t.TempDir()
	alive := make1(t, parent, "alive/../x")
	dead := make1(t, parent, "dead")
	// The process counts as dead when nobody holds the lock.
	if err := dead.lock.Close(); err != nil {
		t.Fatal(err)
	}
	dead.close.Do(func() {})
	made := func(name string, age time.Duration, lock bool) string {
		path := filepath.Join(parent, name)
		if err := os.MkdirAll(filepath.Join(path, "executor-1"), 0o700); err != nil {
			t.Fatal(err)
		}
		if lock {
			if err := os.WriteFile(filepath.Join(path, "lock"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kept := []string{
		alive.Path(), made("somebody-elses", time.Hour, true), made(unborn+prefix+"not-locked-yet", 0, true),
		made(unborn+prefix+"without-lock-yet", 0, false), made(prefix+"being-removed", 0, false),
	}
	gone := []string{
		dead.Path(), made(unborn+prefix+"stillborn", time.Hour, true), made(unborn+prefix+"stillborn-early", time.Hour, false),
		made(prefix+"half-removed", time.Hour, false),
	}
	if n := Clean(parent); n != len(gone) {
		t.Errorf("%d were removed, want %d", n, len(gone))
	}
	for _, path := range slices.Concat(kept, gone) {
		if _, err := os.Stat(path); (err == nil) != slices.Contains(kept, path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A child process does not inherit the lock, so it does not keep the directory alive.
func TestChildrenDoNotInheritTheLock(t *testing.T) {
	parent := t.TempDir()
	d := make1(t, parent, "parent")
	child := exec.Command("sleep", "100")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	if err := d.lock.Close(); err != nil {
		t.Fatal(err)
	}
	d.close.Do(func() {})
	if n := Clean(parent); n != 1 {
		t.Errorf("%d were removed, left: %v", n, names(t, parent))
	}
}

func TestManyAtOnce(t *testing.T) {
	parent := t.TempDir()
	const n = 16
	ended := make(chan error, n)
	for range n {
		go func() {
			for range 8 {
				Clean(parent)
				d, err := Make(parent, "host")
				if err == nil {
					Clean(parent)
					if _, err = os.Stat(filepath.Join(d.Path(), "lock")); err == nil {
						err = d.Close()
					}
				}
				if err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for range n {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if left := names(t, parent); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
