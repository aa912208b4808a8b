package sim

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedFlag     = flag.Uint64("sim.seed", 1, "the seed of TestSeed")
	seedsFlag    = flag.Int("sim.seeds", 20, "how many seeds TestSeeds runs")
	firstFlag    = flag.Uint64("sim.first", 1, "the first seed of TestSeeds")
	checkFlag    = flag.Int("sim.check", 200, "after how many steps machines are checked that do not do it themselves")
	restartsFlag = flag.Bool("sim.restarts", true, "whether the scheduler may be killed, and goes on from its journal")
	traceFlag    = flag.String("sim.trace", "", "a file that gets the whole trace of TestSeed")
	hashesFlag   = flag.String("sim.hashes", "", "a file that gets the hash of each trace of TestSeeds; equal files mean equal behaviour")
	sharedFlag   = flag.Int("sim.shared", 1000, "how many seeds TestSharedState runs")
	smallerFlag  = flag.String("sim.smaller", "", "the reductions of the plan, in order and separated by commas; see shrink.go")
	shrinkFlag   = flag.Int("sim.shrink", 80, "how many runs may be tried to find a smaller one that fails, too")
	minutesFlag  = flag.Float64("sim.minutes", 0, "how long TestSoak runs")
)

// TestSeed runs one seed twice. Both runs must have the same trace.
func TestSeed(t *testing.T) {
	var whole io.Writer
	if *traceFlag != "" {
		f, err := os.Create(*traceFlag)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		b := bufio.NewWriter(f)
		defer func() { _ = b.Flush() }()
		whole = b
	}
	o := options{seed: *seedFlag, restarts: *restartsFlag, checkEvery: *checkFlag, smaller: smaller(), whole: whole}
	first, err := simulate(t, o)
	if err != nil {
		t.Fatal(shrunk(t, o, err))
	}
	o.whole = nil
	second, err := simulate(t, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d: trace hash %016x over %d lines; %s", *seedFlag, first.Hash, first.Lines, first.Summary)
	if first.Hash != second.Hash || first.Lines != second.Lines {
		t.Errorf("seed %d: the second run has trace hash %016x over %d lines; something depends on more than the seed", *seedFlag, second.Hash, second.Lines)
	}
}

// TestSeeds runs many seeds, as many at once as there are processors.
func TestSeeds(t *testing.T) {
	n := *seedsFlag
	if testing.Short() {
		n = min(n, 5)
	}
	runSeeds(t, func(i uint64) bool { return i < uint64(n) })
}

// TestSharedState runs many seeds of clients that share locks, queues and variables, and compares
// their histories with the model.
func TestSharedState(t *testing.T) {
	n := *sharedFlag
	if testing.Short() {
		n = min(n, 100)
	}
	var next, calls, undecided atomic.Uint64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for !t.Failed() {
				i := next.Add(1) - 1
				if i >= uint64(n) {
					return
				}
				o := options{seed: *firstFlag + i, restarts: true, shared: true, checkEvery: *checkFlag, smaller: smaller()}
				r, err := simulate(t, o)
				calls.Add(uint64(r.Calls))
				if err != nil {
					t.Error(shrunk(t, o, err))
				}
				if r.Undecided {
					undecided.Add(1)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d histories from seed %d on, %d calls, %d histories not decided", n, *firstFlag, calls.Load(), undecided.Load())
	if undecided.Load() > uint64(n)/20 {
		t.Error("too many histories are not decided")
	}
}

// TestSoak runs seeds until the given time is over.
func TestSoak(t *testing.T) {
	end := time.Now().Add(time.Duration(*minutesFlag * float64(time.Minute)))
	runSeeds(t, func(uint64) bool { return time.Now().Before(end) })
}

func runSeeds(t *testing.T, more func(uint64) bool) {
	t.Helper()
	var next, lines, failed atomic.Uint64
	var hashes sync.Map
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for failed.Load() < 5 {
				i := next.Add(1) - 1
				if !more(i) {
					return
				}
				o := options{seed: *firstFlag + i, restarts: *restartsFlag, checkEvery: *checkFlag, smaller: smaller()}
				r, err := simulate(t, o)
				lines.Add(r.Lines)
				hashes.Store(o.seed, r.Hash)
				if err != nil {
					failed.Add(1)
					t.Error(shrunk(t, o, err))
				}
			}
		})
	}
	all.Wait()
	if *hashesFlag != "" {
		writeHashes(t, &hashes)
	}
	t.Logf("%d seeds from %d on, %d trace lines, %d failed", next.Load(), *firstFlag, lines.Load(), failed.Load())
}

// smaller returns the reductions that the flag names.
func smaller() []string {
	if *smallerFlag == "" {
		return nil
	}
	return strings.Split(*smallerFlag, ",")
}

// shrunk returns the report on the smallest run that is found to fail, too. A test that has a time
// limit leaves half of the rest to others.
func shrunk(t *testing.T, o options, err error) error {
	t.Helper()
	began := time.Now()
	p, _, wrong := planOf(o)
	if wrong != nil {
		return err
	}
	given, report := o.smaller, err
	o.whole = nil
	shrink(p, *shrinkFlag, func(names []string) bool {
		if end, limited := t.Deadline(); limited && time.Since(began) > time.Until(end) {
			return false
		}
		o.smaller = slices.Concat(given, names)
		_, fault := simulate(t, o)
		if fault != nil {
			report = fault
		}
		return fault != nil
	})
	first, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("%s\nThe smallest run that fails, too:\n%w", first, report)
}

// writeHashes writes one line per seed, in order.
func writeHashes(t *testing.T, hashes *sync.Map) {
	t.Helper()
	var list []string
	hashes.Range(func(seed, hash any) bool {
		list = append(list, fmt.Sprintf("%8d %016x\n", seed, hash))
		return true
	})
	slices.Sort(list)
	if err := os.WriteFile(*hashesFlag, []byte(strings.Join(list, "")), 0o600); err != nil {
		t.Fatal(err)
	}
}
