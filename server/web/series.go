package web

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/server/alarms"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// opMetrics are the metrics of groups of tasks. The machine bounds the number of their names.
type opMetrics struct{ attempts, run, queue, transfer *prometheus.Desc }

func newOpMetrics() opMetrics {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_task_"+name, help, append([]string{"op"}, labels...), nil)
	}
	return opMetrics{
		attempts: describe("attempts_total", "Attempts of tasks that have ended, by the name of the function and the outcome.", "outcome"),
		run:      describe("run_seconds", "Time that attempts spent in their function."),
		queue:    describe("queue_seconds", "Time from the moment at which all inputs of a task existed until its function began."),
		transfer: describe("transfer_seconds", "Time in which inputs came from other workers, of attempts that had to wait for any."),
	}
}

func (m opMetrics) describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{m.attempts, m.run, m.queue, m.transfer} {
		to <- desc
	}
}

func (m opMetrics) collect(to chan<- prometheus.Metric, ops []sched.OpTimes) {
	for i := range ops {
		o := &ops[i]
		to <- prometheus.MustNewConstMetric(m.attempts, prometheus.CounterValue, float64(o.Succeeded), o.Op, "succeeded")
		to <- prometheus.MustNewConstMetric(m.attempts, prometheus.CounterValue, float64(o.Failed), o.Op, "failed")
		to <- histogram(m.run, &o.Run, o.Op)
		to <- histogram(m.queue, &o.Queue, o.Op)
		to <- histogram(m.transfer, &o.Transfer, o.Op)
	}
}

// histogram converts a histogram of the machine.
func histogram(desc *prometheus.Desc, h *sched.Histogram, labels ...string) prometheus.Metric {
	buckets, below := map[float64]uint64{}, uint64(0)
	for i, bound := range sched.TimeBounds() {
		below += h.Buckets[i]
		buckets[bound.Seconds()] = below
	}
	return prometheus.MustNewConstHistogram(desc, h.Count(), h.Sum.Seconds(), buckets, labels...)
}

// workerMetrics are the metrics of each worker beside those of GPUs and lanes.
type workerMetrics struct {
	slots, busy, used, limit, written, read, received, executors *prometheus.Desc
}

func newWorkerMetrics() workerMetrics {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_worker_"+name, help, append([]string{"worker"}, labels...), nil)
	}
	return workerMetrics{
		slots:     describe("slots", "Tasks that the worker runs at once."),
		busy:      describe("busy_slots", "Slots of the worker for which it has a task."),
		used:      describe("memory_used_bytes", "Bytes in use in a tier of the worker's memory: slab, pinned or disk.", "tier"),
		limit:     describe("memory_limit_bytes", "Capacity of a tier of the worker's memory.", "tier"),
		written:   describe("memory_written_bytes_total", "Bytes that the worker moved down to a tier since it started.", "tier"),
		read:      describe("memory_read_bytes_total", "Bytes that the worker read back from a tier since it started.", "tier"),
		received:  describe("received_bytes_total", "Bytes that the worker read from its peers, by path.", "path"),
		executors: describe("executor_deaths_total", "Processes of executors that died since the worker started."),
	}
}

func (m workerMetrics) describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{m.slots, m.busy, m.used, m.limit, m.written, m.read, m.received, m.executors} {
		to <- desc
	}
}

func (m workerMetrics) collect(to chan<- prometheus.Metric, w *schedapi.Worker) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{w.Name}, labels...)...)
	}
	counter := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, append([]string{w.Name}, labels...)...)
	}
	gauge(m.slots, float64(w.Slots))
	gauge(m.busy, float64(min(w.AssignedTasks, w.Slots)))
	seen := map[string]bool{}
	for i := range w.Tiers {
		t := &w.Tiers[i]
		if seen[t.Name] {
			continue // The same series twice would fail the scrape.
		}
		seen[t.Name] = true
		gauge(m.used, float64(t.UsedBytes), t.Name)
		gauge(m.limit, float64(t.SizeBytes), t.Name)
		if i > 0 {
			counter(m.written, float64(t.WrittenBytes), t.Name)
			counter(m.read, float64(t.ReadBytes), t.Name)
		}
	}
	received := map[string]uint64{}
	for i := range w.Routes {
		received[w.Routes[i].Path.String()] += w.Routes[i].Bytes
	}
	for path, bytes := range received { // order-free: each is a series of its own
		counter(m.received, float64(bytes), path)
	}
	counter(m.executors, float64(w.ExecutorDeaths))
}

// journalMetrics are those of the journal; without a journal there are none.
type journalMetrics struct {
	records, waiting, lag, bytes, syncs, failing       *prometheus.Desc
	logged, snapshots, snapshotBytes, snapshotAt, took *prometheus.Desc
}

func newJournalMetrics() journalMetrics {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_journal_"+name, help, nil, nil)
	}
	return journalMetrics{
		records: describe("records_total", "Records that were appended to the journal since the scheduler started."),
		waiting: describe("waiting_records", "Records that are not durable yet."),
		lag:     describe("lag_seconds", "Age of the oldest record that is not durable."),
		bytes:   describe("bytes", "Size of the journal's files."),
		syncs:   describe("sync_seconds", "Time that the disk took to make a batch of records durable."),
		failing: describe("failing", "1 while the journal cannot be written."),

		logged:        describe("logged_bytes", "Bytes that were logged since the last snapshot began."),
		snapshots:     describe("snapshots_total", "Snapshots that were taken since the scheduler started."),
		snapshotBytes: describe("snapshot_bytes", "Size of the last snapshot, with the long values that it names."),
		snapshotAt:    describe("snapshot_timestamp_seconds", "Time at which the last snapshot of this start was complete; 0: none was."),
		took:          describe("snapshot_seconds", "Time that the last snapshot of this start took."),
	}
}

func (m journalMetrics) describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{m.records, m.waiting, m.lag, m.bytes, m.syncs, m.failing, m.logged, m.snapshots, m.snapshotBytes, m.snapshotAt, m.took} {
		to <- desc
	}
}

func (m journalMetrics) collect(to chan<- prometheus.Metric, j *schedapi.Journal) {
	if j == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, value float64) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	to <- prometheus.MustNewConstMetric(m.records, prometheus.CounterValue, float64(j.Records))
	gauge(m.waiting, float64(j.Waiting))
	gauge(m.lag, j.Lag.Seconds())
	gauge(m.bytes, float64(j.Bytes))
	to <- histogram(m.syncs, &j.Syncs)
	failing := 0.0
	if j.Trouble != "" || j.Lost {
		failing = 1
	}
	gauge(m.failing, failing)
	gauge(m.logged, float64(j.Logged))
	to <- prometheus.MustNewConstMetric(m.snapshots, prometheus.CounterValue, float64(j.Snapshots))
	gauge(m.snapshotBytes, float64(j.SnapshotBytes))
	at := 0.0
	if j.Snapshots > 0 {
		at = float64(j.SnapshotAt.UnixMilli()) / 1000
	}
	gauge(m.snapshotAt, at)
	gauge(m.took, j.SnapshotTook.Seconds())
}

// collectAlarms has a series for each kind and severity, so that a rule finds 0 where there is no
// alarm.
func collectAlarms(to chan<- prometheus.Metric, desc *prometheus.Desc, list []alarms.Alarm) {
	type series struct {
		kind     alarms.Kind
		severity alarms.Severity
	}
	counts := map[series]int{}
	for i := range list {
		counts[series{list[i].Kind, list[i].Severity}]++
	}
	for _, kind := range alarms.Kinds() {
		for _, severity := range []alarms.Severity{alarms.Warning, alarms.Critical} {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(counts[series{kind, severity}]), kind.String(), severity.String())
		}
	}
}

// buildInfo is 1, with the version as a label, as Prometheus's own programs have it.
func buildInfo(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_build_info", Help: "1, with the version of the program as a label.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	}, func() float64 { return 1 })
}
