package stream

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// fineStep and fineKept are the distance and the number of the latest samples, coarseStep and
	// coarseKept those of the older ones: 10 minutes and 6 hours.
	fineStep, fineKept     = time.Second, 600
	coarseStep, coarseKept = 10 * time.Second, 2160
)

// sampleColumns are the columns of a sample. time is in seconds since 1970.
const sampleColumns = `["time","tasks_per_second","waiting","ready","assigned","running","succeeded","failed","workers",` +
	`"slots","busy_slots","memory_bytes","memory_limit_bytes","gpu_bytes","gpu_limit_bytes","disk_bytes",` +
	`"ipc_bytes_per_second","pinned_bytes_per_second","borrow_bytes_per_second","ucx_bytes_per_second","grpc_bytes_per_second",` +
	`"cpu_percent","rss_bytes"]`

const sampleWidth = 23

type sample [sampleWidth]float64

// samples keeps the curves of the last hours.
type samples struct {
	summary *summary
	// at is the time of the last sample, and before its figures; cpu is the processor time until
	// then. coarse is the time of the last coarse sample.
	at, coarse time.Time
	before     figures
	cpu        time.Duration
	routes     routeSums

	mu    sync.Mutex
	fine  sampleRing // guarded by mu
	older sampleRing // guarded by mu
}

// sampleRing is a ring buffer.
type sampleRing struct {
	kept int
	ring []sample
	next int
}

func (r *sampleRing) add(s sample) {
	if len(r.ring) < r.kept {
		r.ring = append(r.ring, s)
		return
	}
	r.ring[r.next] = s
	r.next = (r.next + 1) % r.kept
}

// each calls visit for each sample, oldest first.
func (r *sampleRing) each(visit func(*sample)) {
	for i := range r.ring {
		visit(&r.ring[(r.next+i)%len(r.ring)])
	}
}

func newSamples(s *summary) *samples {
	return &samples{summary: s, fine: sampleRing{kept: fineKept}, older: sampleRing{kept: coarseKept}}
}

// take takes a sample if one is due.
func (s *samples) take(now time.Time) {
	passed := now.Sub(s.at)
	if passed < fineStep-tick/2 {
		return
	}
	f, err := read(s.summary.scheduler, now, &s.routes)
	if err != nil {
		return // The loop has stopped.
	}
	cpu := processorTime()
	if s.at.IsZero() {
		s.before, s.cpu = f, cpu
	}
	rate := func(from, to uint64) float64 {
		if to < from || passed <= 0 { // A worker has left, with its sums.
			return 0
		}
		return float64(to-from) / passed.Seconds()
	}
	r := &s.summary.rates
	r.tasks = rate(ended(&s.before), ended(&f))
	for p := range paths {
		r.routes[p] = rate(s.before.routes[p], f.routes[p])
	}
	r.cpu = 100 * rate(uint64(s.cpu), uint64(cpu)) / float64(time.Second)
	s.summary.figures, s.summary.rss = f, residentBytes()
	s.at, s.before, s.cpu = now, f, cpu
	s.keep(now, &f, r)
}

// ended returns the number of attempts that have ended so far.
func ended(f *figures) uint64 { return f.totals.Succeeded + f.totals.Failed }

func (s *samples) keep(now time.Time, f *figures, r *rates) {
	count := func(state sched.TaskState) float64 { return float64(f.totals.Counts[state]) }
	row := sample{
		float64(now.UnixMilli()) / 1000, rounded(r.tasks), count(sched.TaskWaiting), count(sched.TaskReady), count(sched.TaskAssigned),
		count(sched.TaskRunning), float64(f.totals.Succeeded), float64(f.totals.Failed), float64(f.totals.Workers),
		float64(f.slots), float64(f.busy), float64(f.memory), float64(f.memoryLimit), float64(f.gpu), float64(f.gpuLimit), float64(f.disk),
		rounded(r.routes[schedapi.PathIPC]), rounded(r.routes[schedapi.PathPinned]), rounded(r.routes[schedapi.PathBorrow]),
		rounded(r.routes[schedapi.PathUCX]), rounded(r.routes[schedapi.PathGRPC]),
		rounded(r.cpu), float64(s.summary.rss),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fine.add(row)
	if now.Sub(s.coarse) >= coarseStep {
		s.coarse = now
		s.older.add(row)
	}
}

// ServeSamples answers with the samples between two times, in seconds since 1970, oldest first.
func (h *Hub) ServeSamples(w http.ResponseWriter, r *http.Request) error {
	limit := func(name string, otherwise float64) (float64, error) {
		given := r.URL.Query().Get(name)
		if given == "" {
			return otherwise, nil
		}
		seconds, err := strconv.ParseFloat(given, 64)
		if err != nil {
			return 0, edge.InvalidField(name, "it is no time in seconds since 1970")
		}
		return seconds, nil
	}
	from, err := limit("from", 0)
	if err != nil {
		return err
	}
	to, err := limit("to", 1e18)
	if err != nil {
		return err
	}
	writeJSON(w, h.samples.encode(from, to))
	return nil
}

// encode writes the samples from one time to another as JSON: the coarse ones until the oldest fine
// one, then the fine ones.
func (s *samples) encode(from, to float64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := fmt.Appendf(nil, `{"columns":%s,"rows":[`, sampleColumns)
	first := true
	add := func(row *sample) {
		if row[0] < from || row[0] > to {
			return
		}
		if !first {
			data = append(data, ',')
		}
		first = false
		for i, x := range row {
			data = append(data, "[,"[min(i, 1)])
			data = strconv.AppendFloat(data, x, 'f', -1, 64)
		}
		data = append(data, ']')
	}
	oldestFine := 1e18
	if len(s.fine.ring) > 0 {
		oldestFine = s.fine.ring[s.fine.next%len(s.fine.ring)][0]
	}
	s.older.each(func(row *sample) {
		if row[0] < oldestFine {
			add(row)
		}
	})
	s.fine.each(add)
	return append(data, "]}"...)
}

// processorTime returns the processor time of the process.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// residentBytes returns the memory of the process; 0 if the system does not say.
func residentBytes() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(fields[1], 10, 64) // 0 is the answer then, too.
	return pages * uint64(os.Getpagesize())
}
