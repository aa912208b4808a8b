package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// shownGroups bounds the groups in a summary; those with the most tasks are shown.
	shownGroups = 200
	// quiet is the longest time between two summaries.
	quiet = 2 * time.Second
	// deviceCUDA is the API's number of CUDA devices.
	deviceCUDA = 2
	// paths is one more than the last number of a path.
	paths = int(schedapi.PathGRPC) + 1
)

// figures are the numbers of the cluster at one time.
type figures struct {
	time    time.Time
	totals  sched.Totals
	workers map[string]uint64 // by state
	slots   uint64
	busy    uint64
	// Bytes of host memory, of GPU memory, and on disks.
	memory, memoryLimit, gpu, gpuLimit, disk uint64
	routes                                   [paths]uint64 // bytes that arrived, by path
}

// read takes the figures. Only the totals need the scheduler's loop, for some microseconds. Routes
// are summed only with sums: there may be as many as pairs of workers.
func read(scheduler schedapi.Scheduler, now time.Time, sums *routeSums) (figures, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	f := figures{time: now, workers: map[string]uint64{}}
	if err := scheduler.Read(ctx, func(r schedapi.Reader) { f.totals = r.Totals() }); err != nil {
		return f, err
	}
	workers, _ := scheduler.LastSnapshot().Workers(nil, 0, math.MaxInt)
	for _, w := range workers {
		f.workers[stateNames[w.State]]++
		f.slots += uint64(w.Slots)
		f.busy += uint64(min(w.AssignedTasks, w.Slots))
		if w.Device == deviceCUDA {
			f.gpu, f.gpuLimit = f.gpu+w.MemoryUsedBytes, f.gpuLimit+w.MemoryLimitBytes
		} else {
			f.memory, f.memoryLimit = f.memory+w.MemoryUsedBytes, f.memoryLimit+w.MemoryLimitBytes
		}
		f.disk += w.SpilledBytes
	}
	if sums != nil {
		f.routes = sums.of(workers)
	}
	return f, nil
}

// routeSums sums the bytes that arrived by path. It reads the routes of a worker again only if they
// have changed.
type routeSums struct{ known map[ids.WorkerID]workerSums }

type workerSums struct {
	routes []schedapi.Route
	bytes  [paths]uint64
}

func (s *routeSums) of(workers []*schedapi.Worker) (total [paths]uint64) {
	present := make(map[ids.WorkerID]workerSums, len(workers))
	for _, w := range workers {
		sums := s.known[w.ID]
		if !sameRoutes(sums.routes, w.Routes) {
			sums = workerSums{routes: w.Routes}
			for i := range w.Routes {
				if p := int(w.Routes[i].Path); p < paths {
					sums.bytes[p] += w.Routes[i].Bytes
				}
			}
		}
		present[w.ID] = sums
		for p, n := range sums.bytes {
			total[p] += n
		}
	}
	s.known = present
	return total
}

// stateNames are the names of the states of workers, by state.
var stateNames = [...]string{
	schedapi.WorkerActive: "active", schedapi.WorkerDisconnected: "disconnected",
	schedapi.WorkerDraining: "draining", schedapi.WorkerDrained: "drained", schedapi.WorkerLost: "lost",
}

// rates are changes per second between two samples.
type rates struct {
	tasks  float64
	routes [paths]float64
	// cpu is the share of one core that the scheduler used, in percent.
	cpu float64
}

// summary is the topic of the same name.
type summary struct {
	scheduler schedapi.Scheduler
	alarms    Alarms // nil: none
	// figures and rates are of the last sample or, with viewers, of the last update.
	figures figures
	rates   rates
	rss     uint64
	groups  groups
	last    []byte
	sent    time.Time
}

func newSummary(config Config) *summary {
	return &summary{scheduler: config.Scheduler, alarms: config.Alarms, groups: groups{
		ofGraph: map[ids.GraphID][]sched.OpSummary{}, sums: map[string]*group{},
	}}
}

// group is the sum over the tasks of one op.
type group struct {
	Op        string  `json:"op"`
	Waiting   uint64  `json:"waiting"`
	Assigned  uint64  `json:"assigned"`
	Running   uint64  `json:"running"`
	Done      uint64  `json:"done"`
	Failed    uint64  `json:"failed"`
	Cancelled uint64  `json:"cancelled"`
	Released  uint64  `json:"released"`
	Bytes     uint64  `json:"bytes"`
	RunTotal  float64 `json:"run_seconds_total"`
	run       time.Duration
}

func (g *group) tasks() uint64 {
	return g.Waiting + g.Assigned + g.Running + g.Done + g.Failed + g.Cancelled + g.Released
}

// groups sums the ops of all graphs. A changed graph costs only its own ops.
type groups struct {
	revision uint64
	ofGraph  map[ids.GraphID][]sched.OpSummary
	sums     map[string]*group
}

func (s *groups) update(scheduler schedapi.Scheduler) {
	changes := scheduler.LastSnapshot().Changes(schedapi.Selection{Graphs: true}, s.revision)
	s.revision = changes.Revision
	if changes.Snapshot {
		clear(s.ofGraph)
		clear(s.sums)
	}
	for _, g := range changes.Graphs {
		s.replace(g.ID, g.Ops)
	}
	for _, id := range changes.RemovedGraphs {
		s.replace(id, nil)
	}
}

func (s *groups) replace(id ids.GraphID, ops []sched.OpSummary) {
	for i := range s.ofGraph[id] {
		s.add(&s.ofGraph[id][i], -1)
	}
	for i := range ops {
		s.add(&ops[i], 1)
	}
	if s.ofGraph[id] = ops; ops == nil {
		delete(s.ofGraph, id)
	}
}

// add adds the ops of a graph, or with sign -1 takes them away.
func (s *groups) add(o *sched.OpSummary, sign int64) {
	g := s.sums[o.Name]
	if g == nil {
		g = &group{Op: o.Name}
		s.sums[o.Name] = g
	}
	sum := func(to *uint64, n uint64) { *to += n * uint64(sign) }
	sum(&g.Waiting, o.Counts[sched.TaskWaiting]+o.Counts[sched.TaskReady])
	sum(&g.Assigned, o.Counts[sched.TaskAssigned])
	sum(&g.Running, o.Counts[sched.TaskRunning])
	sum(&g.Done, o.Counts[sched.TaskSucceeded]+o.Counts[sched.TaskRescuing])
	sum(&g.Failed, o.Counts[sched.TaskFailed])
	sum(&g.Cancelled, o.Counts[sched.TaskCancelled])
	sum(&g.Released, o.Counts[sched.TaskReleased])
	sum(&g.Bytes, o.OutputBytes)
	g.run += o.RunTime * time.Duration(sign)
	g.RunTotal = g.run.Seconds()
	if sign < 0 && g.tasks() == 0 {
		delete(s.sums, o.Name)
	}
}

// shown returns the groups with the most tasks, in the order of their names.
func (s *groups) shown() []*group {
	all := make([]*group, 0, len(s.sums))
	for _, g := range s.sums { // sorted: below
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.tasks(), a.tasks()), cmp.Compare(a.Op, b.Op))
	})
	all = all[:min(len(all), shownGroups)]
	slices.SortFunc(all, func(a, b *group) int { return cmp.Compare(a.Op, b.Op) })
	return all
}

type tier struct {
	Tier       string `json:"tier"`
	UsedBytes  uint64 `json:"used_bytes"`
	LimitBytes uint64 `json:"limit_bytes"`
}

type routeSum struct {
	Path           string  `json:"path"`
	Bytes          uint64  `json:"bytes"`
	BytesPerSecond float64 `json:"bytes_per_second"`
}

// body is the JSON of a summary without its time.
type body struct {
	Tasks          map[string]uint64 `json:"tasks"`
	TasksPerSecond float64           `json:"tasks_per_second"`
	Workers        map[string]uint64 `json:"workers"`
	Slots          uint64            `json:"slots"`
	BusySlots      uint64            `json:"busy_slots"`
	Clients        uint64            `json:"clients"`
	Graphs         uint64            `json:"graphs"`
	Tiers          []tier            `json:"tiers"`
	Routes         []routeSum        `json:"routes"`
	SlowRoutes     []SlowRoute       `json:"slow_routes,omitempty"`
	Groups         []*group          `json:"groups"`
	Scheduler      schedulerFigures  `json:"scheduler"`
}

type schedulerFigures struct {
	CPUPercent float64 `json:"cpu_percent"`
	RSSBytes   uint64  `json:"rss_bytes"`
}

// taskStates are the names of the states of tasks, by state.
var taskStates = [...]string{
	sched.TaskWaiting: "waiting", sched.TaskReady: "ready", sched.TaskAssigned: "assigned", sched.TaskRunning: "running",
	sched.TaskSucceeded: "succeeded", sched.TaskFailed: "failed", sched.TaskCancelled: "cancelled", sched.TaskReleased: "released",
	sched.TaskRescuing: "rescuing",
}

func (s *summary) update(now time.Time) *event {
	f, err := read(s.scheduler, now, nil)
	if err != nil {
		return nil // The loop has stopped, and the streams end.
	}
	f.routes = s.figures.routes // Those of the last sample.
	s.figures = f
	s.groups.update(s.scheduler)
	text := s.encode()
	if string(text) == string(s.last) && now.Sub(s.sent) < quiet {
		return nil
	}
	s.last, s.sent = text, now
	return s.event(text, now)
}

func (s *summary) snapshot(*viewer) *event { return s.event(s.encode(), s.figures.time) }

func (s *summary) event(text []byte, now time.Time) *event {
	data := fmt.Appendf(nil, "event: summary\ndata: {\"time\":%q,", now.UTC().Format(time.RFC3339Nano))
	return &event{data: append(append(data, text[1:]...), "\n\n"...)}
}

func (s *summary) encode() []byte {
	f := &s.figures
	b := body{
		Tasks: map[string]uint64{}, TasksPerSecond: rounded(s.rates.tasks), Workers: f.workers, Slots: f.slots, BusySlots: f.busy,
		Clients: f.totals.Clients, Graphs: f.totals.Graphs, Tiers: []tier{}, Routes: []routeSum{}, Groups: s.groups.shown(),
		Scheduler: schedulerFigures{CPUPercent: rounded(s.rates.cpu), RSSBytes: s.rss},
	}
	if s.alarms != nil {
		b.SlowRoutes = s.alarms.SlowestRoutes()
	}
	for state, name := range taskStates {
		if name != "" {
			b.Tasks[name] = f.totals.Counts[state]
		}
	}
	for _, t := range []tier{{"memory", f.memory, f.memoryLimit}, {"gpu", f.gpu, f.gpuLimit}, {"disk", f.disk, 0}} {
		if t.UsedBytes+t.LimitBytes > 0 {
			b.Tiers = append(b.Tiers, t)
		}
	}
	for p, bytes := range f.routes {
		if bytes > 0 {
			b.Routes = append(b.Routes, routeSum{schedapi.TransferPath(p).String(), bytes, rounded(s.rates.routes[p])})
		}
	}
	text, _ := json.Marshal(b) // Numbers and texts have a JSON.
	return text
}

// rounded keeps one decimal.
func rounded(x float64) float64 { return math.Round(x*10) / 10 }
