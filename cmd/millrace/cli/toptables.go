package cli

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// The panels of top.
const (
	panelWorkers = iota
	panelFunctions
	panelMemory
	panelRoutes
	panelAlarms
)

var panelNames = [...]string{"workers", "functions", "memory", "routes", "alarms"}

// panelNamed finds a panel; -1 for the empty name.
func panelNamed(name string) (int, error) {
	at := slices.Index(panelNames[:], name)
	if at < 0 && name != "" {
		return 0, usageError{fmt.Errorf("--panel %s: %s", name, strings.Join(panelNames[:], ", "))}
	}
	return at, nil
}

// opGroup is the sum over the tasks of one function.
type opGroup struct {
	name                                      string
	waiting, running, done, failed, cancelled uint64
	runTime                                   time.Duration
	bytes                                     uint64
}

// doneTasks counts the tasks that succeeded, also those whose results are not kept any more.
func doneTasks(c *millracev1.TaskCounts) uint64 {
	return c.GetSucceeded() + c.GetRescuing() + c.GetReleased()
}

// groupsOf sums the functions of all graphs, by name.
func groupsOf(graphs iter.Seq[*millracev1.Graph]) []*opGroup {
	sums := map[string]*opGroup{}
	for graph := range graphs {
		for _, o := range graph.GetOps() {
			g := sums[o.GetOp()]
			if g == nil {
				g = &opGroup{name: o.GetOp()}
				sums[o.GetOp()] = g
			}
			c := o.GetCounts()
			g.waiting += c.GetWaiting() + c.GetReady()
			g.running += c.GetAssigned() + c.GetRunning()
			g.done += doneTasks(c)
			g.failed += c.GetFailed()
			g.cancelled += c.GetCancelled()
			g.runTime += o.GetRunTime().AsDuration()
			g.bytes += o.GetOutputBytes()
		}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b *opGroup) int { return cmp.Compare(a.name, b.name) })
}

// topCell is a text, or a number with its text.
type topCell struct {
	text    string
	number  float64
	numeric bool
}

func textCell(text string) topCell { return topCell{text: plain(text)} }

func numberCell(x float64, text string) topCell {
	return topCell{text: plain(text), number: x, numeric: true}
}

func countCell[N uint32 | uint64](n N) topCell { return numberCell(float64(n), fmt.Sprint(n)) }

func sizeCell(n uint64) topCell { return numberCell(float64(n), size(n)) }

// unknownCell is a figure that is not known. It sorts below all others.
func unknownCell() topCell { return numberCell(-1, "-") }

func percentCell(part, whole uint64) topCell {
	if whole == 0 {
		return unknownCell()
	}
	share := 100 * float64(part) / float64(whole)
	return numberCell(share, fmt.Sprintf("%.0f%%", share))
}

func durationCell(d time.Duration) topCell {
	unit := time.Second
	switch {
	case d < time.Millisecond:
		unit = time.Microsecond
	case d < time.Minute:
		unit = time.Millisecond
	}
	return numberCell(d.Seconds(), d.Round(unit).String())
}

// Levels of trouble of a row.
const (
	levelFine = iota
	levelWarning
	levelCritical
)

type topRow struct {
	cells []topCell
	level int
}

// topTable is the content of a panel.
type topTable struct {
	columns []string
	rows    []topRow
}

func (t *topTable) add(level int, cells ...topCell) {
	t.rows = append(t.rows, topRow{cells, level})
}

// topSort says by which column the rows of a panel are sorted.
type topSort struct {
	column  int
	reverse bool
}

// defaultSort puts first: the functions that took the most time, and else the first names.
func defaultSort(panel int) topSort {
	if panel == panelFunctions {
		return topSort{column: functionTimeColumn, reverse: true}
	}
	return topSort{}
}

func (t *topTable) sort(by topSort) {
	if by.column >= len(t.columns) {
		return
	}
	slices.SortStableFunc(t.rows, func(a, b topRow) int {
		x, y := a.cells[by.column], b.cells[by.column]
		n := cmp.Compare(x.text, y.text)
		if x.numeric && y.numeric {
			n = cmp.Compare(x.number, y.number)
		}
		if by.reverse {
			n = -n
		}
		return n
	})
}

// filter keeps the rows that have a text in some cell, in whatever case.
func (t *topTable) filter(text string) {
	text = strings.ToLower(text)
	t.rows = slices.DeleteFunc(t.rows, func(r topRow) bool {
		return !slices.ContainsFunc(r.cells, func(c topCell) bool { return strings.Contains(strings.ToLower(c.text), text) })
	})
}

// lines returns the header and the rows, with aligned columns.
func (t *topTable) lines() (header string, rows []string) {
	widths := make([]int, len(t.columns))
	right := make([]bool, len(t.columns))
	for i, name := range t.columns {
		widths[i] = ansi.StringWidth(name)
		right[i] = len(t.rows) > 0 && t.rows[0].cells[i].numeric
		for _, r := range t.rows {
			widths[i] = max(widths[i], ansi.StringWidth(r.cells[i].text))
		}
	}
	line := func(text func(i int) string) string {
		var b strings.Builder
		for i := range t.columns {
			cell := text(i)
			space := strings.Repeat(" ", widths[i]-ansi.StringWidth(cell))
			if i > 0 {
				b.WriteString("  ")
			}
			if right[i] {
				b.WriteString(space + cell)
			} else {
				b.WriteString(cell + space)
			}
		}
		return b.String()
	}
	for _, r := range t.rows {
		rows = append(rows, line(func(i int) string { return r.cells[i].text }))
	}
	return line(func(i int) string { return t.columns[i] }), rows
}

// table returns the content of a panel.
func (f *topFrame) table(panel int) *topTable {
	switch panel {
	case panelFunctions:
		return f.functionsPanel()
	case panelMemory:
		return f.memoryPanel()
	case panelRoutes:
		return f.routesPanel()
	case panelAlarms:
		return f.alarmsPanel()
	}
	return f.workersPanel()
}

func (f *topFrame) workersPanel() *topTable {
	t := &topTable{columns: []string{
		"WORKER", "HOST", "STATE", "SLOTS", "TASKS/S", "MEMORY", "LIMIT", "USED", "LOWER", "SPILL/S", "GPU", "GPU MEM", "RX/S", "TX/S", "DEATHS", "AGE",
	}}
	for _, w := range f.workers {
		gpu, memory := unknownCell(), unknownCell()
		if h := w.GetGpuHealth(); h != nil {
			gpu = percentCell(uint64(h.GetUtilizationPercent()), 100)
			memory = percentCell(h.GetUsedBytes(), w.GetGpu().GetMemoryBytes())
		}
		rate := func(of func(workerRates) float64) topCell {
			r, known := f.rates[w.GetWorkerId()]
			if !known {
				return unknownCell()
			}
			return numberCell(of(r), size(uint64(of(r))))
		}
		tasks := unknownCell()
		if r, known := f.rates[w.GetWorkerId()]; known {
			tasks = numberCell(r.finished, figure(r.finished))
		}
		busy := min(w.GetAssignedTasks(), w.GetSlots())
		t.add(workerLevel(w),
			textCell(w.GetName()), textCell(w.GetHost()), textCell(stateWord(w)),
			numberCell(float64(busy), fmt.Sprintf("%d/%d", busy, w.GetSlots())), tasks,
			sizeCell(w.GetMemoryUsedBytes()), sizeCell(w.GetMemoryLimitBytes()), percentCell(w.GetMemoryUsedBytes(), w.GetMemoryLimitBytes()),
			sizeCell(lowerBytes(w)), rate(func(r workerRates) float64 { return r.written }), gpu, memory,
			rate(func(r workerRates) float64 { return r.received }), rate(func(r workerRates) float64 { return r.sent }),
			countCell(w.GetDeathCount()), numberCell(f.time.Sub(w.GetCreateTime().AsTime()).Seconds(), age(w.GetCreateTime())))
	}
	return t
}

// stateWord is the state of a worker, or the purpose of its drain.
func stateWord(w *millracev1.Worker) string {
	word := strings.ToLower(short(w.GetState(), "WORKER_STATE_"))
	if w.GetState() == millracev1.WorkerState_WORKER_STATE_DRAINING {
		word += " (" + drainPurpose(w) + ")"
	}
	return word
}

func workerLevel(w *millracev1.Worker) int {
	switch {
	case w.GetState() == millracev1.WorkerState_WORKER_STATE_DISCONNECTED:
		return levelCritical
	case w.GetState() != millracev1.WorkerState_WORKER_STATE_ACTIVE, w.GetSpillFailure() != "", w.GetGpuHealth() != nil && gpuHealth(w.GetGpuHealth()) != "ok":
		return levelWarning
	}
	return levelFine
}

// lowerBytes counts the bytes in the tiers below the slab.
func lowerBytes(w *millracev1.Worker) uint64 {
	if len(w.GetTiers()) == 0 {
		return w.GetSpilledBytes()
	}
	var sum uint64
	for _, t := range w.GetTiers()[1:] {
		sum += t.GetUsedBytes()
	}
	return sum
}

// functionTimeColumn is the column of the run time.
const functionTimeColumn = 6

func (f *topFrame) functionsPanel() *topTable {
	t := &topTable{columns: []string{"FUNCTION", "WAITING", "RUNNING", "DONE", "FAILED", "CANCELLED", "RUN TIME", "MEAN", "BYTES", "PROGRESS"}}
	for _, g := range f.groups {
		ended := g.done + g.failed
		mean := unknownCell()
		if ended > 0 {
			mean = durationCell(g.runTime / time.Duration(ended))
		}
		level := levelFine
		if g.failed > 0 {
			level = levelWarning
		}
		t.add(level, textCell(g.name), countCell(g.waiting), countCell(g.running), countCell(g.done), countCell(g.failed), countCell(g.cancelled),
			durationCell(g.runTime), mean, sizeCell(g.bytes), percentCell(ended+g.cancelled, ended+g.cancelled+g.waiting+g.running))
	}
	return t
}

func (f *topFrame) memoryPanel() *topTable {
	t := &topTable{columns: []string{"WORKER", "TIER", "USED", "SIZE", "SHARE", "LARGEST FREE", "OBJECTS", "EVICTABLE", "LEAVING", "COMING", "WRITTEN", "READ", "FAILS"}}
	for _, w := range f.workers {
		for _, x := range w.GetTiers() {
			level := levelFine
			if x.GetFailure() != "" {
				level = levelCritical
			}
			t.add(level, textCell(w.GetName()), textCell(x.GetName()), sizeCell(x.GetUsedBytes()), sizeCell(x.GetSizeBytes()), percentCell(x.GetUsedBytes(), x.GetSizeBytes()),
				sizeCell(x.GetLargestFreeBytes()), sizeCell(x.GetObjectBytes()), sizeCell(x.GetEvictableBytes()), sizeCell(x.GetLeavingBytes()), sizeCell(x.GetComingBytes()),
				sizeCell(x.GetWrittenBytes()), sizeCell(x.GetReadBytes()), textCell(cmp.Or(x.GetFailure(), "-")))
		}
	}
	return t
}

func (f *topFrame) routesPanel() *topTable {
	t := &topTable{columns: []string{"READER", "SOURCE", "PATH", "GB/S", "AT CONNECT", "SMALL", "BYTES", "NOT BY"}}
	measured := func(x float64, unit string) topCell {
		if x <= 0 {
			return unknownCell()
		}
		return numberCell(x, positive(x, unit))
	}
	for _, p := range f.pairs {
		level := levelFine
		if p.Path == "" {
			level = levelCritical
		}
		t.add(level, textCell(p.Reader), textCell(p.Source), textCell(p.lane()), measured(p.GBPerS, ""), measured(p.ConnectGBPerS, ""),
			measured(p.LatencyUS, " µs"), sizeCell(p.Bytes), textCell(cmp.Or(p.notBy(), "-")))
	}
	return t
}

func (f *topFrame) alarmsPanel() *topTable {
	t := &topTable{columns: []string{"SEVERITY", "FOR", "SUBJECT", "ALARM", "REMEDY"}}
	for _, x := range f.alarms {
		level := levelWarning
		if x.GetSeverity() == millracev1.AlarmSeverity_ALARM_SEVERITY_CRITICAL {
			level = levelCritical
		}
		since := f.time.Sub(x.GetStartTime().AsTime())
		t.add(level, textCell(strings.ToLower(short(x.GetSeverity(), "ALARM_SEVERITY_"))), numberCell(since.Seconds(), since.Round(time.Second).String()),
			textCell(x.GetSubject()), textCell(x.GetText()), textCell(x.GetRemedy()))
	}
	return t
}
