package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const topHelp = `Shows the cluster as it changes: workers, tasks by function, memory by tier, routes between workers, and alarms.

Keys: 1 to 5 or Tab chooses a panel; < and > choose the column to sort by, r reverses; / filters the rows, Esc ends that;
arrows, PgUp, PgDn, Home and End move; Space pauses; ? shows this; q quits.

With --once, and without a terminal, it prints plain text: all panels, or the one of --panel. Without a terminal it prints a
frame each --interval. Rates need two frames, so the first frame has none. It looks at the cluster only: tasks never wait
for it.`

// leastInterval is the shortest time between two frames.
const leastInterval = 100 * time.Millisecond

func (a *app) top() *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Watch workers, functions, memory, routes and alarms", Long: topHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d := a.settings.Duration("interval"); d < leastInterval {
				return usageError{fmt.Errorf("--interval %v: at least %v", d, leastInterval)}
			}
			panel, err := panelNamed(a.settings.String("panel"))
			if err != nil {
				return err
			}
			limit := a.settings.Duration("timeout")
			if !a.settings.Bool("once") {
				limit = 0
			}
			return a.callFor(cmd.Context(), limit, func(ctx context.Context, c *millrace.Client, _ millracev1.SchedulerServiceClient) error {
				return a.runTop(ctx, c, panel)
			})
		},
	}
	addTimeout(cmd)
	cmd.Flags().Duration("interval", 2*time.Second, "time between two frames")
	cmd.Flags().Bool("once", false, "print one plain frame")
	cmd.Flags().String("panel", "", "begin with this panel: "+strings.Join(panelNames[:], ", "))
	return cmd
}

// runTop shows frames until the user has enough. panel is the first panel; -1: not chosen.
func (a *app) runTop(ctx context.Context, c *millrace.Client, panel int) error {
	ctx, cancel := context.WithCancel(ctx)
	source := newTopSource(c)
	var following sync.WaitGroup
	following.Go(func() { source.follow(ctx) })
	defer following.Wait()
	defer cancel()
	frame := func(routes bool) (*topFrame, error) {
		ctx, cancel := context.WithTimeout(ctx, a.settings.Duration("timeout"))
		defer cancel()
		return source.sample(ctx, routes)
	}
	once, interval := a.settings.Bool("once"), a.settings.Duration("interval")
	if out, ok := a.out.(*os.File); ok && !once && term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb" {
		// A wrong address or token is an error, and no screen.
		f, err := frame(panel == panelRoutes)
		if err != nil {
			return err
		}
		m := newTopModel(frame, interval, panel)
		m.take(f)
		return runTopView(ctx, out, m)
	}
	for first := true; ; first = false {
		f, err := frame(panel < 0 || panel == panelRoutes)
		if err != nil {
			if ctx.Err() != nil && !once {
				return nil
			}
			return err
		}
		if !first {
			_, _ = fmt.Fprintln(a.out)
		}
		if err := f.print(a.out, panel); err != nil || once {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// topSource follows a cluster and makes frames of it. It is safe for concurrent use.
type topSource struct {
	client *millrace.Client
	begun  chan struct{} // closed when the workers and graphs are known, or lost is

	mu sync.Mutex
	// The following fields are guarded by mu. lost is the error that ended the stream of changes;
	// nil while it flows.
	workers map[uint32]*millracev1.Worker
	graphs  map[uint64]*millracev1.Graph
	lost    error
	started bool
	last    *topFrame
}

func newTopSource(c *millrace.Client) *topSource {
	return &topSource{
		client: c, begun: make(chan struct{}),
		workers: map[uint32]*millracev1.Worker{}, graphs: map[uint64]*millracev1.Graph{},
	}
}

// follow receives changes until ctx ends. It begins again after an error.
func (s *topSource) follow(ctx context.Context) {
	const pause = time.Second
	for ctx.Err() == nil {
		lost := errors.New("the scheduler ended the stream of changes")
		for batch, err := range s.client.Watch(ctx, millrace.WatchOptions{Graphs: true, Workers: true}) {
			if err != nil {
				lost = err
				break
			}
			s.apply(batch)
		}
		s.set(func() { s.lost = lost })
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// set changes the state, and tells the first reader that there is one.
func (s *topSource) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	if !s.started {
		s.started = true
		close(s.begun)
	}
}

func (s *topSource) apply(batch *millracev1.WatchResponse) {
	s.set(func() {
		s.lost = nil
		if batch.GetSnapshot() {
			clear(s.workers)
			clear(s.graphs)
		}
		for _, w := range batch.GetWorkers() {
			s.workers[w.GetWorkerId()] = w
			if w.GetState() == millracev1.WorkerState_WORKER_STATE_LOST {
				delete(s.workers, w.GetWorkerId())
			}
		}
		for _, g := range batch.GetGraphs() {
			s.graphs[g.GetGraphId()] = g
		}
		for _, id := range batch.GetRemovedWorkerIds() {
			delete(s.workers, id)
		}
		for _, id := range batch.GetRemovedGraphIds() {
			delete(s.graphs, id)
		}
	})
}

// sample makes a frame. Routes are read only if that is asked for: there may be as many as pairs of
// workers.
func (s *topSource) sample(ctx context.Context, routes bool) (*topFrame, error) {
	select {
	case <-s.begun:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	cluster, err := s.client.ClusterInfo(ctx)
	if err != nil {
		return nil, err
	}
	alarms, err := s.client.Scheduler().ListAlarms(ctx, &millracev1.ListAlarmsRequest{})
	if err != nil {
		return nil, err
	}
	f := &topFrame{time: time.Now(), address: s.client.Leader(), cluster: cluster, alarms: alarms.GetAlarms()}
	if routes {
		full, err := s.client.FullWorkers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
		if err != nil {
			return nil, err
		}
		f.pairs = pairsOf(full)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return nil, s.lost
	}
	f.workers = slices.SortedFunc(maps.Values(s.workers), func(a, b *millracev1.Worker) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetWorkerId(), b.GetWorkerId()))
	})
	f.groups = groupsOf(maps.Values(s.graphs))
	f.compare(s.last)
	s.last = f
	return f, nil
}

// topFrame is the cluster at one time.
type topFrame struct {
	time    time.Time
	address string
	cluster *millracev1.ClusterInfo
	workers []*millracev1.Worker
	groups  []*opGroup
	pairs   []pair
	alarms  []*millracev1.Alarm
	// rates are of workers that were in the frame before, by number.
	rates map[uint32]workerRates
}

// workerRates are changes per second: tasks, and bytes.
type workerRates struct{ finished, received, sent, written float64 }

// compare computes the rates since another frame; nil: there are none.
func (f *topFrame) compare(before *topFrame) {
	f.rates = map[uint32]workerRates{}
	if before == nil {
		return
	}
	seconds := f.time.Sub(before.time).Seconds()
	if seconds <= 0 {
		return
	}
	old := make(map[uint32]*millracev1.Worker, len(before.workers))
	for _, w := range before.workers {
		old[w.GetWorkerId()] = w
	}
	per := func(now, then uint64) float64 { return max(float64(now)-float64(then), 0) / seconds }
	for _, w := range f.workers {
		if o := old[w.GetWorkerId()]; o != nil {
			f.rates[w.GetWorkerId()] = workerRates{
				finished: per(w.GetFinishedTasks(), o.GetFinishedTasks()), received: per(w.GetReceivedBytes(), o.GetReceivedBytes()),
				sent: per(w.GetSentBytes(), o.GetSentBytes()), written: per(w.GetSpillWrittenBytes(), o.GetSpillWrittenBytes()),
			}
		}
	}
}

// busySlots counts the slots of active workers that have a task.
func (f *topFrame) busySlots() (busy uint32) {
	for _, w := range f.workers {
		if w.GetState() == millracev1.WorkerState_WORKER_STATE_ACTIVE {
			busy += min(w.GetAssignedTasks(), w.GetSlots())
		}
	}
	return busy
}

// summary describes the cluster in two lines.
func (f *topFrame) summary() [2]string {
	x, t := f.cluster, f.cluster.GetTasks()
	rate := "-"
	if len(f.rates) > 0 {
		sum := 0.0
		for _, w := range f.workers { // in the order of names, so that the sum is always the same
			sum += f.rates[w.GetWorkerId()].finished
		}
		rate = figure(sum)
	}
	return [2]string{
		plain(fmt.Sprintf("%s  up %s  %s  %d of %d slots busy  %s tasks/s  memory %s of %s  %s", f.address, age(x.GetStartTime()),
			several(int(x.GetActiveWorkers()), "worker"), f.busySlots(), x.GetTotalSlots(), rate,
			size(x.GetMemoryUsedBytes()), size(x.GetMemoryLimitBytes()), several(int(x.GetClients()), "client"))),
		fmt.Sprintf("tasks: %d waiting, %d running, %d done, %d failed, %d cancelled",
			t.GetWaiting()+t.GetReady(), t.GetAssigned()+t.GetRunning(), doneTasks(t), t.GetFailed(), t.GetCancelled()),
	}
}

// print writes the frame as plain text: one panel, or with -1 all of them.
func (f *topFrame) print(w io.Writer, panel int) error {
	lines := f.summary()
	text := strings.Join(lines[:], "\n") + "\n"
	for p := range panelNames {
		if panel >= 0 && p != panel {
			continue
		}
		text += "\n" + strings.ToUpper(panelNames[p]) + "\n"
		t := f.table(p)
		t.sort(defaultSort(p))
		header, rows := t.lines()
		if len(rows) == 0 {
			text += "none\n"
			continue
		}
		for _, line := range append([]string{header}, rows...) {
			text += strings.TrimRight(line, " ") + "\n"
		}
	}
	_, err := io.WriteString(w, text)
	return err
}
