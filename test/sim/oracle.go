package sim

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// kind is the behaviour of a task's function.
type kind uint8

const (
	// works succeeds whenever it runs.
	works kind = iota
	// flaky fails in its first runs; the task has enough retries.
	flaky
	// fails never succeeds.
	fails
	// hangs never ends; the task has a timeout.
	hangs
	// kills kills its executor, slays the whole worker.
	kills
	slays
	// data has no function: its bytes come from a client.
	data
)

// spec is one task as the graph prescribes it. The simulation knows it; the machines do not.
type spec struct {
	index     int
	namespace string
	key       string
	kind      kind
	op        sched.OpSpec
	options   sched.Options
	inputs    []*spec
	// run is the duration of the function.
	run time.Duration
	// bytes is the size of the result in the slab; 0: it is small.
	bytes uint64
	// failures is the number of runs of a flaky function that fail; failed counts those so far.
	failures, failed int
	// value is the task's result.
	value uint64
	// cancelledAt and retriedAt are the times of the last cancel and retry, as event numbers; 0:
	// never. cancelledBy has the clients that cancelled it.
	cancelledAt, retriedAt uint64
	cancelledBy            map[ids.ClientID]bool
	// mayBeLost means that the object of the task may be gone: a client cancelled or released the
	// task, or disappeared, or a worker lost the object or ended with it. deaths counts those of
	// workers and executors that had the task.
	mayBeLost bool
	deaths    uint32
	// refused means that a run of the task could not wait for other tasks, and failed for that;
	// starved that one found no memory. Both use up retries.
	refused, starved bool
	// walked is the number of the last walk that visited the task; see oracle.lastWalk.
	walked uint64
}

// oracle has every task that any client ever submitted, with the result that it must have. It
// decides whether an outcome is right.
type oracle struct {
	w        *world
	specs    []*spec
	byTask   map[ids.TaskID]*spec
	graphs   map[ids.GraphID][]*spec
	lastWalk uint64
}

func newOracle(w *world) *oracle {
	return &oracle{w: w, byTask: map[ids.TaskID]*spec{}, graphs: map[ids.GraphID][]*spec{}}
}

// add adds a new task and computes its result.
func (o *oracle) add(s *spec) *spec {
	s.index = len(o.specs)
	o.specs = append(o.specs, s)
	values := make([]uint64, len(s.inputs))
	for i, in := range s.inputs {
		values[i] = in.value
	}
	s.value = result(s.arguments(), values)
	s.cancelledBy = map[ids.ClientID]bool{}
	o.w.counts.tasks++
	return s
}

// copyOf returns the task by which the machine copies an object. It is added when it is first
// assigned, because no client submitted it.
func (o *oracle) copyOf(a *workerv1.Assignment) *spec {
	task := ids.TaskID(a.GetTaskId())
	if s := o.byTask[task]; s != nil {
		return s
	}
	of := o.byTask[ids.TaskID(a.GetInputs()[0].GetTaskId())]
	s := o.add(&spec{namespace: a.GetNamespace(), key: a.GetKey(), op: sched.OpSpec{Kind: sched.OpNative, Name: copyOp}, inputs: []*spec{of}})
	o.byTask[task] = s
	o.w.counts.copies++
	return s
}

// arguments are the bytes that the worker gets for the task: its key and its index in the oracle.
func (s *spec) arguments() []byte {
	return binary.LittleEndian.AppendUint64([]byte(s.key+"\x00"), uint64(s.index))
}

// specOf returns the task with the arguments that a worker got; nil if they are wrong.
func (o *oracle) specOf(arguments []byte) *spec {
	if len(arguments) < 8 {
		return nil
	}
	i := binary.LittleEndian.Uint64(arguments[len(arguments)-8:])
	if i >= uint64(len(o.specs)) {
		return nil
	}
	return o.specs[i]
}

// result computes the value of any function from its arguments and inputs.
func result(arguments []byte, inputs []uint64) uint64 {
	h := xxhash.New()
	_, _ = h.Write(arguments)
	for _, v := range inputs {
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, v))
	}
	return h.Sum64()
}

// walk visits a task and the tasks that it needs. If visit returns false for one, those that only
// this one needs are left out.
func (o *oracle) walk(s *spec, visit func(*spec) bool) {
	o.lastWalk++
	stack := []*spec{s}
	for len(stack) > 0 {
		top := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if top.walked == o.lastWalk {
			continue
		}
		top.walked = o.lastWalk
		if visit(top) {
			stack = append(stack, top.inputs...)
		}
	}
}

// retried notes that a task runs again, and what it needs that is not there. Inputs of a result
// that is there stay cancelled: if that is lost, it is cancelled, too.
func (o *oracle) retried(s *spec) {
	o.walk(s, func(a *spec) bool {
		id, _ := o.w.server.m.Lookup(a.namespace, a.key)
		u, _ := o.w.server.m.UpdateOf(id)
		if a != s && (u.State == sched.TaskCancelled || u.State == sched.TaskSucceeded) {
			return false
		}
		a.retriedAt = o.w.events
		return true
	})
}

// expectedReason is the error reason of a task that fails by itself; empty if it can succeed.
func (s *spec) expectedReason() string {
	switch s.kind {
	case fails:
		return "FUNCTION_RAISED"
	case hangs:
		return "TASK_TIMEOUT"
	case kills, slays:
		return "POISON_TASK"
	case data:
		return "OBJECT_LOST"
	case flaky:
		if s.starved {
			return "FUNCTION_RAISED"
		}
	case works:
	}
	return ""
}

// check returns an error if the outcome of a task is wrong.
func (o *oracle) check(s *spec, state sched.TaskState, err *sched.TaskError) error {
	origins, blamed := map[string]*spec{}, false
	doomed, cancelled, refused := false, false, false
	o.walk(s, func(a *spec) bool {
		refused, blamed = refused || a.refused, blamed || a.deaths >= maxWorkerDeaths
		switch a.kind {
		case fails, hangs, kills, slays:
			doomed = true
			origins[a.key] = a
		case data:
			origins[a.key] = a
		case flaky:
			if a.starved {
				origins[a.key] = a
			}
		case works:
		}
		// The scheduler cancels its own copies when they are not wanted any more.
		if a.cancelledAt > min(s.retriedAt, a.retriedAt) || a.op.Name == copyOp {
			cancelled = true
		}
		return true
	})
	switch state {
	case sched.TaskSucceeded:
		if doomed {
			return fmt.Errorf("%s succeeded though something that it needs cannot", s.key)
		}
	case sched.TaskFailed:
		if err == nil {
			return fmt.Errorf("%s failed without an error", s.key)
		}
		if refused || blamed && (err.Reason == "POISON_TASK" || err.Reason == "INPUT_FAILED") {
			return nil
		}
		if o.w.plan.tight && (err.Reason == "OUT_OF_MEMORY" || err.Reason == "INPUT_FAILED") {
			return nil
		}
		origin := origins[err.OriginKey]
		if origin == nil {
			return fmt.Errorf("%s (kind %d, %d failures of %d) failed because of %q, which has no reason to: %s: %s", s.key, s.kind, s.failed, s.failures, err.OriginKey, err.Reason, err.Message)
		}
		want := "INPUT_FAILED"
		if origin == s {
			want = s.expectedReason()
		}
		if err.Reason != want {
			return fmt.Errorf("%s failed with %s, not %s: %s", s.key, err.Reason, want, err.Message)
		}
		if origin.kind == data && !origin.mayBeLost && !o.w.mayLoseAny {
			return fmt.Errorf("%s failed for lost data though no worker lost it and nobody gave it up: %s", s.key, err.Message)
		}
	case sched.TaskCancelled:
		if !cancelled {
			return fmt.Errorf("%s is cancelled though nobody cancelled it: %+v", s.key, err)
		}
	case sched.TaskWaiting, sched.TaskReady, sched.TaskAssigned, sched.TaskRunning, sched.TaskReleased, sched.TaskRescuing:
		return fmt.Errorf("%s has not ended: state %d", s.key, state)
	}
	return nil
}

// randomOp makes an op for a task. There are several pickled functions, so that functions are added
// and dropped.
func (w *world) randomOp(k kind) sched.OpSpec {
	if k == data {
		return sched.OpSpec{Kind: sched.OpData, Name: "data"}
	}
	switch n := w.rng.IntN(4); {
	case n == 0 && k != kills: // a native operation has no executor
		return sched.OpSpec{Kind: sched.OpNative, Name: mixOp}
	case n == 1:
		return sched.OpSpec{Kind: sched.OpPythonImport, Name: fmt.Sprintf("sim:f%d", w.rng.IntN(3))}
	case n == 2:
		op := sched.OpSpec{Kind: sched.OpPythonPickle, Name: "lambda"}
		op.Function[0], op.Function[31] = byte(1+w.rng.IntN(6)), 1
		return op
	}
	return sched.OpSpec{Kind: sched.OpExec, Name: "simexec/run"}
}

// task makes a random task with the given inputs.
func (w *world) task(namespace, key string, inputs []*spec) *spec {
	s := &spec{namespace: namespace, key: key, inputs: inputs}
	r := w.rng.IntN(1000)
	switch {
	case r < 60:
		s.kind = flaky
		s.failures = 1 + w.rng.IntN(3)
		s.options.MaxRetries = uint32(s.failures + w.rng.IntN(2))
		s.options.RetryBackoff = w.between(time.Millisecond, 300*time.Millisecond)
	case r < 75:
		s.kind = fails
		s.options.MaxRetries = uint32(w.rng.IntN(3))
	case r < 80:
		s.kind = hangs
		s.options.Timeout = w.between(10*time.Millisecond, 300*time.Millisecond)
	case r < 84:
		s.kind = kills
	case r < 86:
		s.kind = slays
	case r < 120 && len(inputs) == 0:
		s.kind = data
	}
	s.op = w.randomOp(s.kind)
	switch {
	case w.chance(w.plan.longRuns):
		s.run = w.between(50*time.Millisecond, 600*time.Millisecond)
	case w.chance(0.5):
		s.run = w.between(10*time.Microsecond, time.Millisecond)
	default:
		s.run = w.between(time.Millisecond, 50*time.Millisecond)
	}
	switch largest := w.plan.largest(); {
	case w.chance(w.plan.large):
		s.bytes = uint64(64<<10 + w.rng.IntN(largest-64<<10))
	case w.chance(0.5):
		s.bytes = uint64(256 + w.rng.IntN(largest))
	}
	if s.bytes > 0 {
		if w.chance(0.3) {
			s.options.ExpectedOutputBytes = s.bytes
		}
	}
	if s.kind != data {
		switch w.rng.IntN(20) {
		case 0:
			s.options.Slots = uint32(1 + w.rng.IntN(2))
		case 1:
			s.options.Resources = map[string]float64{"gpu": 1}
		case 2:
			for range 1 + w.rng.IntN(3) {
				s.options.Workers = append(s.options.Workers, sched.WorkerSelector{Name: pick(w, w.hosts).name})
			}
			s.options.AllowOtherWorkers = w.chance(0.5)
		case 3:
			s.options.Priority = int32(w.rng.IntN(5)) - 2
		}
	}
	return w.oracle.add(s)
}

// graph makes a graph of a random shape, inputs before their users. Some of its roots may use
// existing tasks.
func (w *world) graph(namespace, prefix string, n int, known []*spec) []*spec {
	var out []*spec
	next := func(inputs ...*spec) *spec {
		s := w.task(namespace, fmt.Sprintf("%s.%d", prefix, len(out)), inputs)
		out = append(out, s)
		return s
	}
	// root makes a task without inputs from this graph.
	root := func() *spec {
		if len(known) > 0 && w.chance(0.5) {
			return next(pick(w, known))
		}
		return next()
	}
	switch w.rng.IntN(6) {
	case 0: // independent
		for range n {
			root()
		}
	case 1: // chain
		s := root()
		for range min(n, 20) - 1 {
			s = next(s)
		}
	case 2: // tree
		level := []*spec{}
		for range max(n/2, 2) {
			level = append(level, root())
		}
		for len(level) > 1 {
			var up []*spec
			for i := 0; i < len(level); i += 2 {
				up = append(up, next(level[i:min(i+2, len(level))]...))
			}
			level = up
		}
	case 3: // merge
		var all []*spec
		// All inputs must fit into one slab.
		switch {
		case w.plan.diskBytes > 0:
			n = min(n, 6)
		case w.plan.tight:
			n = min(n, 12)
		}
		for range max(n-1, 2) {
			all = append(all, root())
		}
		next(all...)
	case 4: // stencil
		width := 3 + w.rng.IntN(5)
		row := []*spec{}
		for range width {
			row = append(row, root())
		}
		for range max(n/width-1, 1) {
			var below []*spec
			for i := range width {
				below = append(below, next(row[max(i-1, 0)], row[i], row[min(i+1, width-1)]))
			}
			row = below
		}
	default: // random
		for i := range n {
			if i == 0 || w.chance(0.2) {
				root()
				continue
			}
			var inputs []*spec
			for range 1 + w.rng.IntN(4) {
				inputs = append(inputs, out[max(0, i-1-w.rng.IntN(15))])
			}
			next(inputs...)
		}
	}
	return out
}
