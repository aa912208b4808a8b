package journal

import (
	"archive/zip"
	"fmt"
	"math"
	"os"
	"testing"
)

// The kept directory of the format that this program writes has records of each kind, so the next
// format is tested with all of them. (server/loop opens it.)
func TestTheKeptJournalHasRecordsOfEachKind(t *testing.T) {
	name := fmt.Sprintf("testdata/format-%d.zip", formatVersion)
	packed, err := zip.OpenReader(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packed.Close() }() // It was only read.
	path := t.TempDir()
	if err := os.CopyFS(path, packed); err != nil {
		t.Fatal(err)
	}
	d, _, err := ReadDirectory(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }() // It was only read.
	// Records of the last two begin and end a snapshot. Open reads them alone.
	seen := map[kind]bool{kindSnapshotBegan: true, kindSnapshotEnded: true}
	report, err := Examine(d, false, func(e Entry) error {
		seen[kindOf(e.Record)] = true
		return nil
	})
	if err != nil || !report.Sound() || report.Snapshot == nil || report.Values == 0 {
		t.Fatalf("%s: %+v, %v", name, report, err)
	}
	for k := range kind(math.MaxUint8) {
		if r := newRecord(k); r != nil && !seen[k] {
			t.Errorf("%s has no %T: let writeKept in server/loop make one, and write the directory again before a release has this format", name, r)
		}
	}
}
