// Package otlp is an Adapter: it sends traces of graphs and of attempts of tasks to a collector of
// OpenTelemetry, by its protocol OTLP.
//
// A graph is traced if the span of the client that submits it is sampled or, without such a span,
// by chance. Nothing is recorded for traces: a few times a second, Exporter.Run reads the attempts
// that the scheduler keeps anyway, for graphs that are traced only. Spans that the collector does
// not take in time are dropped, and counted.
package otlp

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// defaultInterval is the time between two looks at the scheduler.
	defaultInterval = 500 * time.Millisecond
	// flushTimeout bounds the time that the last spans have after the end.
	flushTimeout = 2 * time.Second
	// maxGraphs bounds the graphs that are traced at a time.
	maxGraphs = 10_000
	// readRuns bounds the attempts that one read of the scheduler returns, and readErrors the
	// messages of failures.
	readRuns, readErrors = 2000, 50
	// maxLinks bounds the spans that one graph is linked to.
	maxLinks = 32
)

// Exporter makes the spans and sends them.
type Exporter struct {
	config    Config
	scheduler schedapi.Scheduler
	log       *slog.Logger
	sender    *sender
	spans     *prometheus.CounterVec

	mu     sync.Mutex
	graphs map[ids.GraphID]*graph // guarded by mu, and so are the graphs

	// after and mark are numbers of attempts. Those up to after have been read. Those up to mark,
	// which ended before the last look, are read by the next one: by then each call that submitted
	// their graphs has returned, so the graphs are known here.
	after, mark uint64
}

// graph is a traced graph whose tasks have not all ended.
type graph struct {
	trace  [16]byte
	span   [8]byte
	parent *parent // nil: the graph is the root of its trace
	links  []parent
	// name and namespace are those of the submission, which may have added to an older graph.
	name, namespace string
	// begin is the time of the first submission, and latest that of the last one.
	begin, latest time.Time
	// row is the last state of the graph; nil: it was not in the catalogue yet.
	row *schedapi.Graph
	// over says that the row had ended, or was gone, at the last look. Then the next look, which
	// reads the last attempts, ends the span at the time end.
	over, gone bool
	end        time.Time
	// attempts counts those that have ended, and lastRun is the time of the last end. failed has
	// the tasks whose last attempt has failed, at most readRuns, and failure is what one of them
	// has reported. Only the goroutine of Run uses them.
	attempts uint64
	lastRun  time.Time
	failed   map[ids.TaskID]struct{}
	failure  string
}

// New returns an exporter, whose counters it registers. It connects to nothing until Run is called.
func New(config Config, scheduler schedapi.Scheduler, metrics prometheus.Registerer) (*Exporter, error) {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Interval == 0 {
		config.Interval = defaultInterval
	}
	e := &Exporter{
		config: config, scheduler: scheduler, log: config.Log, graphs: map[ids.GraphID]*graph{},
		spans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_otlp_spans_total", Help: "Spans of traces, by what became of them.",
		}, []string{"result"}),
	}
	for _, result := range results {
		e.spans.WithLabelValues(result)
	}
	if err := metrics.Register(e.spans); err != nil {
		return nil, err
	}
	var err error
	e.sender, err = newSender(&e.config, e.spans)
	return e, err
}

// Submitted hears of a submission that was accepted into a graph, with the headers traceparent and
// tracestate of its sender; empty: it sent none.
func (e *Exporter) Submitted(id ids.GraphID, what *sched.GraphSubmitted, at time.Time, header, state string) {
	p, traced := parseParent(header, state)
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := e.graphs[id]; g != nil {
		g.over, g.latest = false, at
		if traced && p.sampled && !g.knows(p) && len(g.links) < maxLinks {
			g.links = append(g.links, p)
		}
		return
	}
	if traced && !p.sampled || !traced && rand.Float64() >= e.config.Sample {
		return
	}
	if len(e.graphs) >= maxGraphs {
		e.spans.WithLabelValues(dropped).Inc()
		return
	}
	g := &graph{name: what.Name, namespace: what.Namespace, begin: at, latest: at, span: newSpanID()}
	if traced {
		g.parent, g.trace = &p, p.trace
	} else {
		g.trace = newTraceID()
	}
	e.graphs[id] = g
}

// knows reports whether a span is the graph's parent or linked to it.
func (g *graph) knows(p parent) bool {
	if g.parent != nil && g.parent.span == p.span && g.parent.trace == p.trace {
		return true
	}
	for _, l := range g.links {
		if l.span == p.span && l.trace == p.trace {
			return true
		}
	}
	return false
}

// Run makes spans and sends them until ctx ends, and then for a moment. Call it once.
func (e *Exporter) Run(ctx context.Context) {
	sent := make(chan struct{})
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() {
		defer close(sent)
		e.sender.run(sending)
	}()
	tick := time.NewTicker(e.config.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			e.look(sending)
		}
	}
	e.look(sending)
	e.look(sending) // It reads what has ended before the first one.
	e.endAll(time.Now())
	e.sender.close()
	limit := time.NewTimer(flushTimeout)
	defer limit.Stop()
	select {
	case <-sent:
	case <-limit.C:
		cancel()
		<-sent
	}
}

// look makes the spans of what has ended before the last look. Its reads of the scheduler have no
// time limit: one that went on after its limit would meet the next one.
func (e *Exporter) look(ctx context.Context) {
	for e.after < e.mark {
		runs, errs, ok := e.read(ctx)
		if !ok {
			return // The scheduler has stopped.
		}
		e.offerAttempts(runs, errs)
	}
	e.endGraphs()
	// NB: the mark is younger than the states of the graphs, so the attempts of each graph that has
	// ended lie before it.
	e.refresh(ctx, time.Now())
	_ = e.scheduler.Read(ctx, func(r schedapi.Reader) { e.mark = r.LastRun() }) // At an error the mark stays.
}

// read returns some of the attempts up to the mark: those that get spans, and what the failed ones
// reported, by task.
func (e *Exporter) read(ctx context.Context) (runs []sched.Run, errs map[ids.TaskID]*sched.TaskError, ok bool) {
	e.mu.Lock()
	graphs := maps.Clone(e.graphs)
	e.mu.Unlock()
	if len(graphs) == 0 {
		e.after = e.mark
		return nil, nil, true
	}
	wanted := func(r *sched.Run) bool {
		g := graphs[r.Graph]
		return g != nil && !r.End.Before(g.begin) && g.ended(r) // Else it is of an earlier submission.
	}
	err := e.scheduler.Read(ctx, func(r schedapi.Reader) {
		runs, e.after = r.RunsIf(wanted, e.after, e.mark, readRuns)
		errs = failures(r, runs)
	})
	return runs, errs, err == nil
}

// failures returns what failed attempts have reported, by task. If the scheduler has forgotten the
// task, it may still have the message.
func failures(r schedapi.Reader, runs []sched.Run) map[ids.TaskID]*sched.TaskError {
	errs := map[ids.TaskID]*sched.TaskError{}
	var last map[string]string // by op
	for i := range runs {
		run := &runs[i]
		if run.Succeeded || len(errs) == readErrors {
			continue
		}
		if u, known := r.UpdateOf(run.Task); known {
			if u.Err != nil {
				errs[run.Task] = u.Err
			}
			continue
		}
		if last == nil {
			last = map[string]string{}
			for _, o := range r.OpTimes() {
				last[o.Op] = o.LastFailure
			}
		}
		if message, is := strings.CutPrefix(last[run.Op], "task "+run.Key+": "); is {
			errs[run.Task] = &sched.TaskError{Message: message}
		}
	}
	return errs
}

// ended counts an attempt of the graph, and reports whether it gets a span.
func (g *graph) ended(r *sched.Run) bool {
	if g.attempts++; r.End.After(g.lastRun) {
		g.lastRun = r.End
	}
	switch {
	case r.Succeeded:
		delete(g.failed, r.Task)
	case len(g.failed) < readRuns:
		if g.failed == nil {
			g.failed = map[ids.TaskID]struct{}{}
		}
		g.failed[r.Task] = struct{}{}
	}
	return !r.Succeeded || shown(g.attempts)
}

// offerAttempts makes the spans of attempts.
func (e *Exporter) offerAttempts(runs []sched.Run, errs map[ids.TaskID]*sched.TaskError) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range runs {
		g, err := e.graphs[runs[i].Graph], errs[runs[i].Task] // Only this goroutine ends graphs, so it is still there.
		if err != nil {
			g.failure = err.Message
		}
		e.offer(attemptSpans(g, &runs[i], err))
	}
}

// shown chooses the attempts of a graph that get spans: the first 1,000, then 500 of the next
// 1,000, of the next 2,000, and so on, evenly.
func shown(n uint64) bool {
	stride := uint64(1)
	for most := uint64(1000); n > most; most *= 2 {
		stride *= 2
	}
	return n%stride == 0
}

// endGraphs makes the spans of the graphs that were found ended.
func (e *Exporter) endGraphs() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endGraphsLocked()
}

func (e *Exporter) endGraphsLocked() {
	for id, g := range e.graphs { // order-free: each has a span of its own
		if g.over {
			delete(e.graphs, id)
			e.offer([]*tracepb.Span{graphSpan(id, g)})
		}
	}
}

// refresh finds the graphs that have ended.
func (e *Exporter) refresh(ctx context.Context, now time.Time) {
	e.mu.Lock()
	known := make(map[ids.GraphID]time.Time, len(e.graphs))
	for id, g := range e.graphs { // order-free: it is a set
		known[id] = g.latest
	}
	e.mu.Unlock()
	if len(known) == 0 {
		return
	}
	rows, err := e.scheduler.Snapshot(ctx) // It has the submissions that are known.
	if err != nil {
		return // The scheduler has stopped.
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, latest := range known { // order-free: each is changed alone
		g, row := e.graphs[id], rows.Graph(id)
		switch {
		case !g.latest.Equal(latest): // There was another submission in the meantime.
		case row == nil: // It was released.
			g.over, g.gone, g.end = true, true, now
			if !g.lastRun.IsZero() {
				g.end = g.lastRun
			}
		case row.EndedAt.IsZero():
			g.row = row
		default: // If it is older than the last submission, that one brought no new tasks.
			g.row, g.over, g.end = row, true, row.EndedAt
			if g.latest.After(g.end) {
				g.end = g.latest
			}
		}
	}
}

// endAll makes the spans of the graphs that have not ended when the scheduler stops.
func (e *Exporter) endAll(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.graphs { // order-free: each is changed alone
		if !g.over {
			g.over, g.end = true, now
		}
	}
	e.endGraphsLocked()
}

// offer hands spans to the sender, or drops them if it has too many.
func (e *Exporter) offer(spans []*tracepb.Span) {
	for _, s := range spans {
		e.sender.offer(s)
	}
}
