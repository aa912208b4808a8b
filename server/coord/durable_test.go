package coord_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/server/coord"
)

func durableConfig() coord.Config {
	return coord.Config{TopicMessages: 5, Bytes: 64 << 10, Durable: true, Piece: 3}
}

func newDurableWorld(pick func(n int) int) *world {
	w := newWorld(pick)
	w.m = coord.New(durableConfig())
	return w
}

// rowsOf returns all rows of a machine, as text.
func rowsOf(m *coord.Machine) map[string]bool {
	rows := map[string]bool{}
	for cursor, more := uint64(0), true; more; {
		cursor, more = m.Rows(cursor, func(row any) { addRows(rows, row.(*coord.Coordinated).Changes, true) })
	}
	return rows
}

func addRows(rows map[string]bool, changes []coord.Change, there bool) {
	for _, c := range changes {
		rows[fmt.Sprintf("%T %+v", c.Row, c.Row)] = there
	}
}

func listed(rows map[string]bool) string {
	return strings.Join(slices.Sorted(maps.Keys(rows)), "\n")
}

// loaded returns a machine that has loaded changes, and the effects of that.
func (w *world) loaded(steps [][]coord.Change) (*coord.Machine, []coord.Effect) {
	m := coord.New(durableConfig())
	for _, changes := range steps {
		for _, c := range changes {
			m.Load(c)
		}
	}
	return m, m.Loaded(w.now, w.started*1_000_000, w.started*1_000_000, nil)
}

// restart goes on with a machine that was loaded from the log. All callers are gone.
func (w *world) restart() error {
	w.say("restart")
	w.started++
	before := rowsOf(w.m)
	m, out := w.loaded(w.log)
	w.m = m
	clear(w.open)
	if err := w.take(out); err != nil {
		return err
	}
	after := rowsOf(m)
	for row := range after {
		if !before[row] {
			return fmt.Errorf("after the restart there is %s", row)
		}
	}
	// Only what calls that waited had, and nobody else, is gone.
	for row := range before {
		if !after[row] && !strings.HasPrefix(row, "coord.ValueRow") && !strings.HasPrefix(row, "coord.QueueRow") {
			return fmt.Errorf("after the restart there is no %s", row)
		}
	}
	return nil
}

func TestAnyRestartKeepsAllRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newDurableWorld(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "") })
		w.restarts = true
		if err := w.run(rapid.IntRange(1, 60).Draw(t, "steps")); err != nil {
			t.Fatalf("%v\n%s", err, w.tail())
		}
	})
}

func TestManySeedsWithRestartsEndWell(t *testing.T) {
	seeds := 500
	if testing.Short() {
		seeds = 60
	}
	for seed := 1; seed <= seeds; seed++ {
		p := prng(uint64(seed) * 0x9e3779b97f4a7c15)
		w := newDurableWorld(p.pick)
		w.restarts = true
		if err := w.run(300); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, w.tail())
		}
	}
}

// A snapshot is taken piece by piece while the machine goes on. With the log from its beginning it
// is as good as the whole log, and as the machine that went on.
func TestAFuzzySnapshotIsAsGoodAsTheLog(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 60
	}
	for seed := 1; seed <= seeds; seed++ {
		p := prng(uint64(seed) * 0x9e3779b97f4a7c15)
		w := newDurableWorld(p.pick)
		steps := func(n int) {
			for range n {
				if err := w.step(); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, w.tail())
				}
			}
		}
		steps(100)
		var snapshot [][]coord.Change
		from := len(w.log)
		for cursor, more := uint64(0), true; more; {
			cursor, more = w.m.Rows(cursor, func(row any) { snapshot = append(snapshot, row.(*coord.Coordinated).Changes) })
			steps(p.pick(3))
		}
		steps(20)
		whole, out := w.loaded(w.log)
		part, _ := w.loaded(slices.Concat(snapshot, w.log[from:]))
		want := rowsOf(whole)
		if got := rowsOf(part); listed(got) != listed(want) {
			t.Fatalf("seed %d: the log says\n%s\nand the snapshot with its tail\n%s", seed, listed(want), listed(got))
		}
		went := rowsOf(w.m)
		for _, effect := range out {
			for _, c := range effect.Changes {
				if row, ok := c.Row.(coord.ValueRow); ok {
					for text := range went {
						if strings.HasPrefix(text, fmt.Sprintf("coord.ValueRow {Number:%d ", row.Number)) {
							delete(went, text)
						}
					}
				} else {
					addRows(want, []coord.Change{{Row: c.Row}}, true)
				}
			}
		}
		for text := range went {
			if !want[text] && !strings.HasPrefix(text, "coord.QueueRow") {
				t.Fatalf("seed %d: the machine that went on has %s", seed, text)
			}
		}
		if err := part.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
