package web

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/server/alarms"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// collector reads the scheduler's figures when Prometheus scrapes them. Between scrapes it costs
// nothing.
type collector struct {
	scheduler schedapi.Scheduler
	tasks     *prometheus.Desc
	graphs    *prometheus.Desc
	clients   *prometheus.Desc
	workers   *prometheus.Desc
	inline    *prometheus.Desc
	events    *prometheus.Desc
	failing   *prometheus.Desc
	deaths    *prometheus.Desc
	memory    *prometheus.Desc
	alarm     *prometheus.Desc
	ops       opMetrics
	perWorker workerMetrics
	journal   journalMetrics
	gpus      gpuMetrics
	lanes     laneMetrics
	raised    func() []alarms.Alarm
}

// Register registers the metrics of a scheduler, whose alarms raised returns.
func Register(registry prometheus.Registerer, scheduler schedapi.Scheduler, raised func() []alarms.Alarm, version string) {
	registry.MustRegister(newCollector(scheduler, raised), buildInfo(version))
}

func newCollector(scheduler schedapi.Scheduler, raised func() []alarms.Alarm) prometheus.Collector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_"+name, help, labels, nil)
	}
	return &collector{
		scheduler: scheduler,
		tasks:     describe("tasks", "Tasks that the scheduler knows, by state.", "state"),
		graphs:    describe("graphs", "Graphs that the scheduler knows."),
		clients:   describe("clients", "Open client leases."),
		workers:   describe("workers", "Workers that are not lost."),
		inline:    describe("inline_result_bytes", "Bytes of results held by the scheduler."),
		events:    describe("task_events_total", "Events of tasks since the scheduler started.", "event"),
		failing:   describe("worker_spill_failing", "1 while the worker cannot write to its disk.", "worker"),
		deaths:    describe("worker_deaths_total", "Deaths of workers since the scheduler started.", "cause"),
		memory:    describe("scheduler_held_bytes", "Memory that the scheduler holds for tasks."),
		alarm:     describe("alarm", "Alarms that are raised now.", "kind", "severity"),
		ops:       newOpMetrics(),
		perWorker: newWorkerMetrics(),
		journal:   newJournalMetrics(),
		raised:    raised,
		gpus:      newGPUMetrics(),
		lanes:     newLaneMetrics(),
	}
}

func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.tasks, c.graphs, c.clients, c.workers, c.inline, c.events, c.failing, c.deaths, c.memory, c.alarm} {
		to <- desc
	}
	c.ops.describe(to)
	c.perWorker.describe(to)
	c.journal.describe(to)
	c.gpus.describe(to)
	c.lanes.describe(to)
}

func (c *collector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var totals sched.Totals
	var ops []sched.OpTimes
	if err := c.scheduler.Read(ctx, func(r schedapi.Reader) { totals, ops = r.Totals(), r.OpTimes() }); err != nil {
		to <- prometheus.NewInvalidMetric(c.tasks, err)
		return
	}
	gauge := func(desc *prometheus.Desc, value uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	for state, name := range taskStates {
		if name != "" {
			gauge(c.tasks, totals.Counts[state], name)
		}
	}
	gauge(c.graphs, totals.Graphs)
	gauge(c.clients, totals.Clients)
	gauge(c.workers, totals.Workers)
	gauge(c.inline, totals.InlineBytes)
	for _, event := range []struct {
		name  string
		count uint64
	}{
		{"submitted", totals.Submitted}, {"assigned", totals.Assigned}, {"succeeded", totals.Succeeded},
		{"failed", totals.Failed}, {"cancelled", totals.Cancelled}, {"retracted", totals.Retracted},
		{"recomputed", totals.Recomputed}, {"rescued", totals.Rescued}, {"moved", totals.Moved}, {"forgotten", totals.Forgotten}, {"stale", totals.Stale},
	} {
		to <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(event.count), event.name)
	}
	gauge(c.memory, totals.HeldBytes+totals.InlineBytes+totals.DetailBytes+totals.TailBytes)
	for cause, n := range c.scheduler.Deaths() { // order-free: each is a series of its own
		to <- prometheus.MustNewConstMetric(c.deaths, prometheus.CounterValue, float64(n), cause)
	}
	c.ops.collect(to, ops)
	c.journal.collect(to, c.scheduler.Journal())
	collectAlarms(to, c.alarm, c.raised())
	workers, _ := c.scheduler.LastSnapshot().Workers(nil, 0, shownWorkers)
	named := make(map[string]bool, len(workers))
	for _, w := range slices.Backward(workers) {
		// The same series twice would fail the scrape: of two incarnations of a name, the later one
		// counts.
		if w.State == schedapi.WorkerLost || named[w.Name] {
			continue
		}
		named[w.Name] = true
		failing := uint64(0)
		if w.SpillFailure != "" {
			failing = 1
		}
		gauge(c.failing, failing, w.Name)
		c.perWorker.collect(to, w)
		c.gpus.collect(to, w)
		c.lanes.collect(to, w)
	}
}
