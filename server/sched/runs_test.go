package sched

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// The latest attempts are listed in order, by pages, of one namespace or graph, and since a time.
func TestRunsAreARing(t *testing.T) {
	m := &Machine{}
	begin := time.Unix(1000, 0)
	total := runsLength + 10
	for i := range total {
		ns := "even"
		if i%2 == 1 {
			ns = "odd"
		}
		m.runs.add(&Run{Graph: ids.GraphID(i), Namespace: ns, Worker: "w", End: begin.Add(time.Duration(i) * time.Second)}, fmt.Appendf(nil, "key-%d", i))
	}
	var seen []Run
	for after := uint64(0); ; {
		some, next := m.Runs("odd", 0, time.Time{}, after, 1000)
		seen = append(seen, some...)
		if next == 0 {
			break
		}
		after = next
	}
	if len(seen) != runsLength/2 || seen[0].Key != "key-11" || seen[0].Number != 12 {
		t.Fatalf("%d attempts, the first is %+v", len(seen), seen[0])
	}
	for i, r := range seen {
		if want := fmt.Sprintf("key-%d", 11+2*i); r.Key != want || r.Namespace != "odd" {
			t.Fatalf("attempt %d is %+v, want %s", i, r, want)
		}
	}
	since := begin.Add(time.Duration(total-3) * time.Second)
	if late, next := m.Runs("", 0, since, 0, 10); len(late) != 3 || next != 0 {
		t.Fatalf("%d attempts since %v, next %d", len(late), since, next)
	}
	if one, next := m.Runs("", 0, since, 0, 1); len(one) != 1 || next == 0 || one[0].Key != fmt.Sprintf("key-%d", total-3) {
		t.Fatalf("%+v, next %d", one, next)
	}
	if of, next := m.Runs("", 20, time.Time{}, 0, 10); len(of) != 1 || next != 0 || of[0].Key != "key-20" {
		t.Fatalf("of one graph: %+v, next %d", of, next)
	}
	if none, _ := m.Runs("other", 0, time.Time{}, 0, 10); none != nil {
		t.Fatalf("%+v", none)
	}
}

// All fields of an attempt come back, of however many names, workers and phases.
func TestRunsComeBackWhole(t *testing.T) {
	m := &Machine{}
	begin := time.Unix(1000, 0)
	made := func(i int) Run {
		r := Run{
			Number: uint64(i + 1), Task: ids.TaskID(i + 7), Graph: ids.GraphID(i % 5), Key: fmt.Sprintf("key-%d", i), Namespace: fmt.Sprint("ns-", i%3),
			Op: fmt.Sprint("op-", i%40), Worker: fmt.Sprint("worker-", i%300), WorkerID: ids.WorkerID(i%300 + 1), Attempt: ids.Attempt(i%4 + 1),
			Succeeded: i%7 != 0, OutputBytes: uint64(i) << 33, End: begin.Add(time.Duration(i) * time.Millisecond), RunTime: time.Duration(i), Queue: time.Duration(2 * i),
		}
		if i%2 == 0 {
			r.Phases = Phases{Fetch: time.Duration(i), Load: 2, Wait: 3, Deserialize: 4, Publish: 5, FetchedBytes: 6, Slot: 7}
		}
		return r
	}
	const total = runsLength + 3*runsChunk + 11 // the first chunks have other attempts by now
	for i := range total {
		r := made(i)
		m.runs.add(&r, []byte(r.Key))
	}
	found, _ := m.RunsBefore(0, total, RunFilter{})
	for len(found) < runsLength {
		some, _ := m.RunsBefore(found[len(found)-1].Number, total, RunFilter{})
		found = append(found, some...)
	}
	for k, r := range found {
		if want := made(total - 1 - k); r != want {
			t.Fatalf("attempt %d is %+v, want %+v", total-k, r, want)
		}
	}
	if len(found) != runsLength {
		t.Errorf("%d attempts, want %d", len(found), runsLength)
	}
}

// The keys of all attempts take a bounded amount of memory: the oldest ones are forgotten, also if
// all are in one chunk.
func TestLongKeysOfRunsAreBounded(t *testing.T) {
	for _, c := range []struct{ bytes, runs int }{{60_000, 2_000}, {4_000, 20_000}} {
		m := &Machine{}
		key := func(i uint64) string { return fmt.Sprintf("%0*d", c.bytes, i) }
		for i := range c.runs {
			m.runs.add(&Run{Worker: "w", End: time.Unix(1000, 0)}, []byte(key(uint64(i+1))))
			if m.runs.keyBytes > runsKeyBytes {
				t.Fatalf("keys of %d attempts take %d bytes", i+1, m.runs.keyBytes)
			}
		}
		kept := m.runs.last - m.runs.first + 1
		if least := uint64(runsKeyBytes / c.bytes / 4); kept < least {
			t.Errorf("%d attempts with keys of %d bytes are left, want %d at least", kept, c.bytes, least)
		}
		found, next := m.Runs("", 0, time.Time{}, 0, c.runs)
		if uint64(len(found)) != kept || next != 0 {
			t.Fatalf("%d attempts, next %d, want %d", len(found), next, kept)
		}
		for i, r := range found {
			if want := m.runs.first + uint64(i); r.Number != want || r.Key != key(want) {
				t.Fatalf("attempt %d has the number %d and the key of another", want, r.Number)
			}
		}
	}
}

// Wanted attempts are read in pieces, each of which looks at a bounded number of attempts. Those
// that are not kept any more are passed over.
func TestWantedRunsAreReadInPieces(t *testing.T) {
	m := &Machine{}
	if found, last := m.RunsIf(func(*Run) bool { return true }, 0, 10, 10); found != nil || last != 0 {
		t.Fatalf("of no attempts: %v, %d", found, last)
	}
	total := uint64(runsLength + 10)
	for i := range total {
		m.runs.add(&Run{Graph: ids.GraphID(i % 1000)}, fmt.Appendf(nil, "key-%d", i))
	}
	upTo := m.LastRun() - 5
	var seen []Run
	pieces := 0
	for after := uint64(0); after < upTo; pieces++ {
		some, last := m.RunsIf(func(r *Run) bool { return r.Graph == 0 || r.Graph == 999 }, after, upTo, 20)
		if last <= after || last > after+runsVisited+10 || len(some) > 20 {
			t.Fatalf("%d attempts from %d to %d", len(some), after, last)
		}
		seen, after = append(seen, some...), last
	}
	if want := 2 * (runsLength / 1000); len(seen) != want || seen[0].Key != "key-999" || seen[1].Key != "key-1000" || pieces < want/20 {
		t.Fatalf("%d attempts in %d pieces, want %d; the first is %+v", len(seen), pieces, want, seen[0])
	}
	if found, last := m.RunsIf(func(*Run) bool { return true }, total, total, 10); found != nil || last != total {
		t.Fatalf("after the last one: %v, %d", found, last)
	}
}

// A sample of the latest attempts has the first and the last of them, so that readers know between
// which numbers others are.
func TestSamplesOfRunsHaveBothEnds(t *testing.T) {
	m := &Machine{}
	for range runsLength + 7 {
		m.runs.add(&Run{End: time.Unix(1000, 0)}, nil)
	}
	newest := uint64(runsLength + 7)
	for _, after := range []uint64{0, newest - 1000, newest - 11, newest - 10, newest - 9, newest - 2, newest - 1} {
		found, last := m.LatestRuns(after, 10)
		first := max(after+1, m.runs.first)
		if want := int(min(10, newest-first+1)); len(found) != want || last != newest || found[0].Number != first || found[want-1].Number != newest {
			t.Fatalf("after %d: %d attempts, up to %d: %+v", after, len(found), last, found)
		}
		for i := range found[1:] {
			if step := found[i+1].Number - found[i].Number; step == 0 || step > (newest-first)/9+1 {
				t.Errorf("after %d: from %d to %d", after, found[i].Number, found[i+1].Number)
			}
		}
	}
	if found, last := m.LatestRuns(newest, 10); found != nil || last != newest {
		t.Errorf("%+v, up to %d", found, last)
	}
}
