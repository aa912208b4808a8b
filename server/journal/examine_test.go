package journal

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func examined(t rapid.TB, files Files, live bool) (*Report, []Record) {
	t.Helper()
	var had []Record
	report, err := Examine(files, live, func(e Entry) error {
		had = append(had, e.Record)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return report, had
}

// The report of a sound journal says what it has, and how it ended.
func TestASoundJournalIsReported(t *testing.T) {
	files := newDisk()
	if r, _ := examined(t, files, false); !r.Sound() || r.Stopped || r.Records != 0 {
		t.Errorf("an empty one: %+v", r)
	}
	j, _ := opened(t, files, 1<<20)
	write(t, j, &Begun{Cluster: "c", Life: 7, Starts: 1}, numbered(1), long(1, largeBytes))
	killed := files.left()
	files.stopAt = 0
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		files   *disk
		stopped bool
	}{{files, true}, {killed, false}} {
		before := c.files.changes
		r, had := examined(t, c.files, false)
		if !r.Sound() || r.Stopped != c.stopped || r.Records != 3 || r.Batches != 3 || r.Values != 1 || r.ValueBytes != largeBytes ||
			r.Starts != 1 || r.Begun == nil || *r.Begun != (Begun{"c", 7, 1}) || len(r.Segments) != 1 || r.Segments[0].Records != 3 || len(had) != 3 {
			t.Errorf("%+v", r)
		}
		if c.files.changes != before {
			t.Error("the examination has changed something")
		}
	}
}

// A scheduler that writes may be in the middle of a batch, or have begun a segment meanwhile.
func TestAJournalInUseHasNoTornEnd(t *testing.T) {
	files := filled(t, 3, 1<<20)
	name := segmentName(1)
	f := files.files[name]
	f.data = f.data[:len(f.data)-30]
	if r, _ := examined(t, files, true); !r.Sound() {
		t.Errorf("%+v", r)
	}
	r, _ := examined(t, files, false)
	if r.Sound() || r.Torn == nil || r.Torn.File != name || r.BehindFiles != 1 || r.BehindBytes == 0 {
		t.Errorf("%+v", r)
	}
	f.data[headBytes+batchHead] ^= 1
	if r, _ := examined(t, files, true); r.Sound() || r.Damage == nil || r.Damage.Offset != int64(headBytes) {
		t.Errorf("damage before the end: %+v", r)
	}
}

// Random bytes of a journal are broken, and files removed. A cut keeps all that was before, and a
// scheduler goes on from there, also if power is lost within the cut.
func TestACutKeepsAllBeforeTheDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		files := newDisk()
		segment := rapid.SampledFrom([]int{1, 200, 1 << 20}).Draw(t, "segment")
		j, _ := opened(t, files, segment)
		for n := range 7 {
			if err := j.Wait(t.Context(), j.Append(time.Now(), record(n))); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 3).Draw(t, "faults") {
			names, _ := files.List()
			name := rapid.SampledFrom(names).Draw(t, "file")
			f := files.files[name]
			switch at := rapid.IntRange(0, len(f.data)-1).Draw(t, "byte"); rapid.SampledFrom([]string{"flip", "flip", "short", "remove"}).Draw(t, "fault") {
			case "flip":
				f.data[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
			case "short":
				f.data = f.data[:max(1, at)]
			case "remove":
				if len(names) > 1 {
					delete(files.files, name)
				}
			}
		}
		for _, f := range files.files {
			f.stable, f.clean = bytes.Clone(f.data), len(f.data)
		}
		if err := files.SyncNames(); err != nil {
			t.Fatal(err)
		}
		report, err := Examine(files, false, func(Entry) error { return nil })
		if err != nil {
			if !strings.Contains(err.Error(), "format") { // A later format is no damage.
				t.Fatal(err)
			}
			return
		}
		before := report.Records
		files.stopAt = rapid.SampledFrom([]int{0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}).Draw(t, "stop")
		files.changes = 0
		_, err = Cut(files, ".cut")
		stopped := files.stopAt > 0 && files.changes >= files.stopAt
		files.stopAt = 0
		if before == 0 && !report.Sound() {
			if !errors.Is(err, ErrNothingWhole) {
				t.Fatalf("nothing was whole: %v", err)
			}
			return
		}
		if err != nil && !stopped {
			t.Fatal(err)
		}
		if stopped {
			files = files.left()
			files.crash(rapid.IntRange(0, 300).Draw(t, "rest"), rapid.IntRange(0, tornShapes-1).Draw(t, "shape"))
			if _, err := Cut(files, ".cut2"); err != nil {
				t.Fatal(err)
			}
		}
		report, had := examined(t, files, false)
		if !report.Sound() || len(had) != before {
			t.Fatalf("%d records were before the damage, %d after the cut: %+v", before, len(had), report)
		}
		for i, r := range had {
			if !reflect.DeepEqual(r, record(i)) {
				t.Fatalf("record %d is another one", i)
			}
		}
		j, _ = opened(t, files, segment)
		if err := j.Wait(t.Context(), j.Append(time.Now(), numbered(8))); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if again, _, err := reread(files); err != nil || len(again) != before+1 {
			t.Fatalf("%d records, %v", len(again), err)
		}
	})
}
