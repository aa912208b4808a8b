package cli

import (
	"testing"

	"github.com/millrace/millrace/server/journal"
)

// syncCount counts what is made durable in a directory.
type syncCount struct {
	*journal.Directory
	files, names int
}

func (c *syncCount) Append(name string) (journal.File, error) {
	file, err := c.Directory.Append(name)
	return syncedFile{file, c}, err
}

func (c *syncCount) SyncNames() error {
	c.names++
	return c.Directory.SyncNames()
}

type syncedFile struct {
	journal.File
	count *syncCount
}

func (f syncedFile) Sync() error {
	f.count.files++
	return f.File.Sync()
}

// The token of a scheduler is durable before anybody gets it, and later starts have the same.
func TestTheTokenIsKept(t *testing.T) {
	directory, err := journal.OpenDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	files := &syncCount{Directory: directory}
	for _, made := range []string{"first", "second"} {
		if token, err := keptToken(files, made); err != nil || token != "first" {
			t.Errorf("%q, %v", token, err)
		}
	}
	if files.files != 1 || files.names != 1 {
		t.Errorf("the file was synced %d times, the directory %d times", files.files, files.names)
	}
	if err := directory.Close(); err != nil {
		t.Error(err)
	}
}
