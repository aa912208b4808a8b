package sched

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// submitScratch is reused between submissions.
type submitScratch struct {
	ids []ids.TaskID
	ops []uint32
	// summaries[i] is the place of op i of the submission in its graph's summaries.
	summaries []uint32
	opts      []uint32
	order     rankScratch
}

// maxKeyBytes is the length of the longest key.
const maxKeyBytes = math.MaxUint16

// submit adds tasks, all or none. It first makes the records and enters the keys, so that one pass
// over the hash table finds duplicates, joins and inputs. Nothing refers to the new records until
// all checks have passed; until then rollback can remove them again.
func (m *Machine) submit(ev GraphSubmitted) (SubmitResult, *Error) {
	request := requestKey{ev.Client, "", ev.RequestID}
	if ev.RequestID != "" {
		if ev.Client == 0 {
			request.namespace = ev.Namespace
		}
		if done, ok := m.requests.index[request]; ok {
			if done.body != bodyOf(&ev) {
				return SubmitResult{}, &Error{Kind: ErrRequestConflict, Object: ev.RequestID, Message: fmt.Sprintf(
					"request %q was accepted before with other tasks (graph %s): a request id belongs to one submission; use another one",
					ev.RequestID, done.Graph)}
			}
			m.reportUnused(ev.Ops)
			done.Repeated = true
			return done.SubmitResult, nil
		}
	}
	var holder uint32
	var ns *namespace
	if ev.Client != 0 {
		c := m.clients[ev.Client]
		if c == nil {
			return SubmitResult{}, unknownClient(ev.Client)
		}
		holder, ns = c.holder, c.ns
	}
	var g *graph
	if ev.Graph != 0 {
		g = m.graphOf(ev.Graph)
		if g == nil || g.dropped {
			return SubmitResult{}, unknownGraph(ev.Graph)
		}
		if g.client != ev.Client {
			return SubmitResult{}, invalid("graph", "graph %s belongs to client %d; client %d cannot append to it", g.id, g.client, ev.Client)
		}
		ns = g.ns
	}
	if ns == nil {
		ns = m.namespace(ev.Namespace)
	}
	s := submission{m: m, ev: &ev, ns: ns, first: m.nextID, nested: ev.Client != 0 && m.clients[ev.Client].worker != "", tasksBefore: ns.tasks}
	switch {
	case g != nil:
		s.flow = g.flow
	case ev.Client != 0:
		s.flow = &m.clients[ev.Client].flow
	default:
		s.flow = &ns.flow
	}
	err := s.prepare()
	if err != nil {
		s.rollback()
		if ns.refs == 0 {
			delete(m.namespaces, ns.name)
		}
		return SubmitResult{}, err
	}
	if g == nil {
		g = m.newGraph(&ev, ns)
	}
	result := s.apply(g, holder)
	if ev.RequestID != "" {
		body := s.body.end(&ev)
		m.requests.add(request, answered{result, body})
		if m.facts.on {
			m.facts.put(request.row(answered{result, body}))
		}
	}
	m.reportUnused(ev.Ops)
	return result, nil
}

// reportUnused reports the functions of an accepted submission to which no task refers. The loop
// has stored them for this submission, without need if the submission was a repeated one or if none
// of its tasks has that op.
func (m *Machine) reportUnused(ops []OpSpec) {
	for i := range ops {
		if f := ops[i].Function; f != (ids.FunctionHash{}) && m.functions[f] == 0 {
			m.emit(Effect{Kind: EffectFunctionUnused, Function: f})
		}
	}
}

// submission is the work of one submit.
type submission struct {
	m  *Machine
	ev *GraphSubmitted
	ns *namespace
	// flow is that of its client. start is the place of the first new task.
	flow  *flow
	start uint64
	// tasksBefore is the number of tasks of the namespace before.
	tasksBefore uint64
	// first is the next task id at the start. New tasks have the ids from first to m.nextID - 1.
	first  ids.TaskID
	joined int
	// entered counts the tasks that enter has accepted.
	entered int
	// sorted means that every input within the submission comes before the task that uses it.
	sorted bool
	// deep means that some input is within the submission.
	deep bool
	// nested means that a task has submitted the tasks.
	nested bool
	// body hashes the tasks while they are read.
	body bodyHash
	// held is the memory that the machine held before. most is the limit for the records of all
	// tasks.
	held, most uint64
}

// prepare checks the whole submission and makes the records.
func (s *submission) prepare() *Error {
	m, ev := s.m, s.ev
	s.held, s.most = m.Held(), m.recordRoom(ev.CallerBytes)
	sc := &m.scratch.submit
	sc.ids, sc.ops, sc.opts = sc.ids[:0], sc.ops[:0], sc.opts[:0]
	for i := range ev.Ops {
		if k := ev.Ops[i].Kind; k < OpNative || k > OpData {
			return invalid("ops", "op %d (%s): kind %d is not known", i, ev.Ops[i].Name, k)
		}
		sc.ops = append(sc.ops, m.internOp(ev.Ops[i]))
	}
	sc.opts = append(sc.opts, 0)
	for i := range ev.Options {
		sc.opts = append(sc.opts, m.internOptions(ev.Options[i]))
	}
	if uint64(m.nextID)+uint64(len(ev.Tasks)) >= maxTaskID {
		return invalid("tasks", "the scheduler has run out of task ids; restart it")
	}
	for i := range ev.Tasks {
		if err := s.enter(&ev.Tasks[i]); err != nil {
			return err
		}
		s.entered++
	}
	if err := s.joinedTwice(); err != nil {
		return err
	}
	s.sorted = true
	for i := range ev.Tasks {
		if err := s.resolve(i); err != nil {
			return err
		}
	}
	if err := s.rank(); err != nil {
		return err
	}
	return s.checkFit()
}

// enter makes the record of a task, or joins the task with the known one that has the same key.
func (s *submission) enter(spec *TaskSpec) *Error {
	m := s.m
	sc := &m.scratch.submit
	switch {
	case spec.Key == "" || len(spec.Key) > maxKeyBytes:
		return invalid("key", "task %d: the key has %d bytes; 1 to %d are allowed", s.entered, len(spec.Key), maxKeyBytes)
	case int(spec.Op) >= len(sc.ops):
		return invalid("op", "task %s: op %d is not in the submission's table of %d ops", spec.Key, spec.Op, len(sc.ops))
	case int(spec.Options) >= len(sc.opts):
		return invalid("options", "task %s: options %d are not in the submission's table of %d", spec.Key, spec.Options, len(sc.opts)-1)
	case len(spec.Inputs) >= maxBlockEdges-1:
		return invalid("inputs", "task %s has %d inputs; at most %d are possible", spec.Key, len(spec.Inputs), maxBlockEdges-2)
	case len(spec.Inputs) > 0 && s.ev.Ops[spec.Op].Kind == OpData:
		return invalid("inputs", "task %s: an op of kind DATA has no inputs", spec.Key)
	case len(spec.Arguments) > math.MaxUint32:
		return invalid("arguments", "task %s: %d bytes of arguments; put large values into an object and name it as an input", spec.Key, len(spec.Arguments))
	}
	if err := badItems(spec); err != nil {
		return err
	}
	hash := hashKey(spec.Key)
	s.body.task(spec, hash)
	if id := s.ns.keys.find(m, spec.Key, hash); id != 0 {
		if id >= s.first {
			return duplicateKey(spec.Key)
		}
		s.joined++
		sc.ids = append(sc.ids, id)
		return nil
	}
	id := m.nextID
	b := m.current
	if b != nil && (uint64(id)>>blockBits != b.number || len(b.edges)+len(spec.Inputs) > maxBlockEdges) {
		m.retireCurrent()
		b = nil
		if uint64(id)&blockMask != 0 {
			// The block has no room for the edges, so its other ids are skipped.
			if m.tasks.block(uint64(id)>>blockBits) != nil {
				id = (id | blockMask) + 1
			}
		}
	}
	if b == nil {
		b = m.tasks.add(uint64(id)>>blockBits, m.now)
		m.current = b
	}
	m.nextID = id + 1
	t := &b.tasks[id&blockMask]
	*t = task{
		key:       uint32(len(b.bytes)),
		keyLen:    uint16(len(spec.Key)),
		argLen:    uint32(len(spec.Arguments)),
		op:        sc.ops[spec.Op],
		options:   sc.opts[spec.Options],
		edge:      uint32(len(b.edges)),
		inputs:    uint32(len(spec.Inputs)),
		submitted: uint32(min(max(m.now.Sub(b.base).Milliseconds(), 0), math.MaxUint32)),
		state:     TaskWaiting,
	}
	b.live++
	b.bytes = append(b.bytes, spec.Key...)
	if len(spec.Arguments) <= smallBytes {
		b.bytes = append(b.bytes, spec.Arguments...)
	} else {
		if b.blobs == nil {
			b.blobs = make([][]byte, blockTasks)
		}
		b.blobs[id&blockMask] = spec.Arguments
		t.flags |= flagBlob
	}
	for range spec.Inputs {
		b.edges = append(b.edges, edge{consumer: uint16(id & blockMask)})
	}
	m.totals.HeldBytes += t.heldBytes()
	s.ns.add(t)
	s.ns.keys.insert(m, hash, id)
	sc.ids = append(sc.ids, id)
	if m.totals.HeldBytes > s.most {
		return m.noMemory(s.ev, s.held)
	}
	return s.overLimit()
}

// joinedTwice refuses a submission in which two tasks join the same known task.
func (s *submission) joinedTwice() *Error {
	if s.joined < 2 {
		return nil
	}
	joined := make([]ids.TaskID, 0, s.joined)
	for _, id := range s.m.scratch.submit.ids {
		if id < s.first {
			joined = append(joined, id)
		}
	}
	slices.Sort(joined)
	for i := 1; i < len(joined); i++ {
		if joined[i] == joined[i-1] {
			b, t := s.m.at(joined[i])
			return duplicateKey(string(b.keyOf(t)))
		}
	}
	return nil
}

// retireCurrent ends the use of the current block for new ids, and frees the block if it has no
// live task.
func (m *Machine) retireCurrent() {
	b := m.current
	m.current = nil
	if b.live == 0 {
		m.tasks.remove(b)
	}
}

// resolve finds the inputs of task i. A joined task must have the same op, options, arguments and
// inputs as the known one.
func (s *submission) resolve(i int) *Error {
	m := s.m
	spec := &s.ev.Tasks[i]
	id := m.scratch.submit.ids[i]
	b, t := m.at(id)
	fresh := id >= s.first
	if !fresh && !s.sameBody(b, t, id, spec) {
		return &Error{Kind: ErrKeyConflict, Object: spec.Key,
			Message: fmt.Sprintf("key %s is already the name of another task (%s, graph %s, state %s); use another key, or release that one first",
				spec.Key, m.ops[t.op].spec.Name, m.graphs[t.graph].id, stateName(t.state))}
	}
	var item ItemInput
	items := spec.Items
	for k, key := range spec.Inputs {
		item, items = itemOf(items, k)
		hash := hashKey(key)
		s.body.input(hash)
		in := s.ns.keys.find(m, key, hash)
		if in == 0 {
			return &Error{Kind: ErrUnknownInput, Object: key,
				Message: fmt.Sprintf("task %s needs %s, which is neither in the submission nor known in namespace %q; submit it first, or correct the name",
					spec.Key, key, s.ns.name)}
		}
		if !fresh {
			if e := &b.edges[int(t.edge)+k]; e.input != in || !e.sameItem(item) {
				return &Error{Kind: ErrKeyConflict, Object: spec.Key,
					Message: fmt.Sprintf("key %s is already the name of a task with other inputs (input %d is not %s); use another key", spec.Key, k, key)}
			}
			continue
		}
		e := &b.edges[int(t.edge)+k]
		e.input, e.item, e.count = in, item.Item, itemCountOf(item.Count)
		if in >= s.first {
			s.deep = true
			if in >= id {
				s.sorted = false
			}
		}
	}
	return nil
}

// sameBody compares op, options without priority, arguments and the number of inputs.
func (s *submission) sameBody(b *block, t *task, id ids.TaskID, spec *TaskSpec) bool {
	sc := &s.m.scratch.submit
	return t.op == sc.ops[spec.Op] && s.sameOptions(t.options, sc.opts[spec.Options]) && int(t.inputs) == len(spec.Inputs) &&
		string(b.argsOf(t, uint64(id&blockMask))) == string(spec.Arguments)
}

// sameOptions compares options without priority.
func (s *submission) sameOptions(a, b uint32) bool {
	return a == b || s.m.options[a].body == s.m.options[b].body
}

// checkFit refuses tasks with NoWait that no registered worker can run.
func (s *submission) checkFit() *Error {
	m := s.m
	sc := &m.scratch.submit
	hasty := false
	for _, o := range sc.opts {
		hasty = hasty || m.options[o].NoWait
	}
	for i := 0; hasty && i < len(s.ev.Tasks); i++ {
		id := sc.ids[i]
		_, t := m.at(id)
		if id < s.first || !m.options[t.options].NoWait || m.ops[t.op].spec.Kind == OpData {
			continue
		}
		slot := m.internClass(t.op, t.options)
		c := m.classes[slot]
		if len(m.feasible(c)) > 0 {
			continue
		}
		why := m.whyUnfit(c)
		m.freeUnusedClass(slot)
		return &Error{Kind: ErrNoWorkerFits, Object: s.ev.Tasks[i].Key,
			Message: fmt.Sprintf("task %s: %s", s.ev.Tasks[i].Key, why)}
	}
	return nil
}

// rollback removes all records that prepare made.
func (s *submission) rollback() {
	m := s.m
	for id := m.nextID - 1; id >= s.first; id-- {
		b := m.tasks.block(uint64(id) >> blockBits)
		if b == nil || b.tasks[id&blockMask].state == 0 {
			continue
		}
		t := &b.tasks[id&blockMask]
		s.ns.keys.remove(m, hashKeyBytes(b.keyOf(t)), id)
		m.totals.HeldBytes -= t.heldBytes()
		s.ns.remove(t)
		b.bytes, b.edges = b.bytes[:t.key], b.edges[:t.edge]
		if t.flags&flagBlob != 0 {
			b.blobs[id&blockMask] = nil
		}
		*t = task{}
		if b.live--; b.live == 0 && b != m.current {
			m.tasks.remove(b)
		}
	}
	// These ids were never visible outside, so they can be used again. But a block that was full
	// stays retired.
	if m.current != nil && uint64(s.first)>>blockBits == m.current.number {
		m.nextID = s.first
	}
	for _, o := range m.scratch.submit.ops {
		if m.ops[o].tasks == 0 {
			m.retireOp(o)
		}
	}
	for _, o := range m.scratch.submit.opts {
		m.freeUnusedOptions(o)
	}
}

// apply links the new tasks, starts those that can start, and adds the holds. It cannot fail.
func (s *submission) apply(g *graph, clientHolder uint32) SubmitResult {
	m, ev := s.m, s.ev
	sc := &m.scratch.submit
	sc.summaries = sc.summaries[:0]
	for range ev.Ops {
		sc.summaries = append(sc.summaries, math.MaxUint32)
	}
	classOp, classOpt, class := uint32(math.MaxUint32), uint32(0), uint32(0)
	result := SubmitResult{Graph: g.id, Tasks: slices.Clone(sc.ids), Joined: uint64(s.joined)}
	m.touch(g.slot, g)
	var unheld []ids.TaskID
	unheld, result.Failed = s.renew()
	for i := range ev.Tasks {
		id := sc.ids[i]
		if id < s.first {
			continue
		}
		b, t := m.at(id)
		spec := &ev.Tasks[i]
		if sc.summaries[spec.Op] == math.MaxUint32 {
			sc.summaries[spec.Op] = g.summary(ev.Ops[spec.Op].Name)
		}
		if t.op != classOp || t.options != classOpt {
			classOp, classOpt, class = t.op, t.options, m.internClass(t.op, t.options)
		}
		t.graph, t.summary, t.class = g.slot, sc.summaries[spec.Op], class
		m.classes[class].tasks++
		m.useOp(t.op)
		m.options[t.options].tasks++
		g.counts[TaskWaiting]++
		g.summaries[t.summary].Counts[TaskWaiting]++
		m.totals.Counts[TaskWaiting]++
		m.history.add(m, id, 0, TaskWaiting, 0, 0)
		for k := range b.edgesOf(t) {
			at := t.edge + uint32(k)
			in := b.edges[at].input
			_, p := m.at(in)
			m.linkEdge(b, at, p)
			p.unfinished++
			switch p.state {
			case TaskSucceeded:
				continue
			case TaskReleased:
				m.reruns = append(m.reruns, rerun{task: in})
			case TaskFailed, TaskCancelled:
				m.inherit(id, in, p)
			case TaskWaiting, TaskReady, TaskAssigned, TaskRunning, TaskRescuing:
			}
			t.missing++
		}
	}
	n := uint64(len(ev.Tasks) - s.joined)
	g.live += n
	if !s.nested && n > 0 {
		s.flow.extend(s.start, n)
	}
	g.begin(n)
	m.totals.Tasks += n
	m.totals.Submitted += n
	if n > 0 {
		m.addRange(g, s.first, m.nextID)
	}
	row, put := s.putTasks(g), 0
	for i := range ev.Tasks {
		id := sc.ids[i]
		_, t := m.at(id)
		s.want(g, clientHolder, id, t, ev.Tasks[i].Hold)
		if row != nil && id >= s.first {
			row.Tasks[put].RunHold = t.flags&flagRunHold != 0
			put++
		}
		if id >= s.first && t.missing == 0 && t.state == TaskWaiting && m.ops[t.op].spec.Kind != OpData && !m.standsBy(id) {
			m.setState(id, t, TaskReady)
		}
	}
	// In order of rank, so that all entries go to the sorted run of the queue.
	for i := range ev.Tasks {
		if s.deep {
			i = int(sc.order.ranked[i])
		}
		id := sc.ids[i]
		b, t := m.at(id)
		switch {
		case id < s.first:
		case t.state == TaskWaiting && t.inputs > 0:
			m.preassignNew(b, t, s.first)
		case t.state == TaskReady && t.flags&flagQueued == 0:
			m.enqueue(id, t)
		}
	}
	// After the other entries for the same tasks: the list is a stack.
	s.retryFailed(unheld)
	for _, o := range sc.opts {
		m.freeUnusedOptions(o)
	}
	if cap(sc.ids) > 1<<20 {
		m.scratch.submit = submitScratch{}
	}
	return result
}

// renew makes joined tasks run again if the new submission does not accept their end: cancelled
// tasks, and lost scattered data, whose bytes the client sends again. unheld are the failed tasks
// that no client holds: a failure that only a graph or a dataset keeps would come as a surprise,
// perhaps from yesterday. They count as RELEASED until retryFailed. failed are those that stay as
// they are.
func (s *submission) renew() (unheld, failed []ids.TaskID) {
	m := s.m
	if s.joined == 0 {
		return nil, nil
	}
	for _, id := range m.scratch.submit.ids {
		if id >= s.first {
			continue
		}
		b, t := m.at(id)
		data := m.ops[t.op].spec.Kind == OpData
		switch {
		case data && (t.state == TaskCancelled || t.state == TaskFailed || t.state == TaskReleased):
			m.clearTrouble(id, t)
			m.forgetLostData(id)
			m.setState(id, t, TaskWaiting)
			m.putAgain(id, t)
			m.notify(id, b, t)
			m.reconsider(id, t)
		case t.state == TaskCancelled:
			m.clearTrouble(id, t)
			m.setState(id, t, TaskReleased)
			m.putAgain(id, t)
			m.reconsider(id, t)
		case t.state == TaskFailed && m.clientHolds(b, t):
			failed = append(failed, id)
		case t.state == TaskFailed:
			unheld = append(unheld, id)
			m.count(t, TaskReleased)
		}
	}
	return unheld, failed
}

// retryFailed runs the failed tasks that renew found again, if the submission wants them. The
// others keep their failure, because tasks that a client holds may have it as their origin.
func (s *submission) retryFailed(unheld []ids.TaskID) {
	m := s.m
	for _, id := range unheld {
		_, t := m.at(id)
		if !t.wanted() {
			m.count(t, TaskFailed)
			continue
		}
		m.clearTrouble(id, t)
		m.history.add(m, id, TaskFailed, TaskReleased, t.attempt, t.worker)
		m.reruns = append(m.reruns, rerun{task: id, retry: retryUnheld})
	}
}

// want adds the hold on a submitted task, if any, and starts the task again if it is wanted and has
// no object.
func (s *submission) want(g *graph, clientHolder uint32, id ids.TaskID, t *task, hold bool) {
	m := s.m
	switch {
	case clientHolder != 0 && hold:
		m.hold(clientHolder, id)
		// Notify even if the client already held the task: it may have forgotten the outcome.
		if ended(t.state) {
			m.notifyOne(id, t, m.holders[clientHolder].client)
		}
	case g.holder != 0 && (hold || t.dependents == 0):
		m.hold(g.holder, id)
	case t.dependents == 0 && (t.undone() || t.state == TaskReleased):
		// The graph of a joined task may have no owner left that could end this.
		if own := m.graphs[t.graph]; own.client != 0 && !own.dropped {
			t.flags |= flagRunHold
			if id < s.first {
				m.putRunHold(id)
			}
		}
	}
	if t.state == TaskReleased && t.wanted() {
		m.reruns = append(m.reruns, rerun{task: id})
	}
}

// putTasks reports the new tasks of a submission, and returns the row; nil: there is none.
func (s *submission) putTasks(g *graph) *TasksPut {
	m, ev := s.m, s.ev
	n := len(ev.Tasks) - s.joined
	if !m.facts.on || n == 0 {
		return nil
	}
	sc := &m.scratch.submit
	r := &TasksPut{Graph: g.id, Ops: ev.Ops, Options: ev.Options, Tasks: make([]TaskRow, 0, n)}
	used := slices.DeleteFunc(slices.Clone(sc.summaries), func(at uint32) bool { return at == math.MaxUint32 })
	slices.Sort(used)
	for _, at := range slices.Compact(used) {
		r.Totals = append(r.Totals, g.summaries[at].total())
	}
	inputs := 0
	for i, id := range sc.ids {
		if id >= s.first {
			inputs += len(ev.Tasks[i].Inputs)
		}
	}
	r.Inputs = make([]InputRow, 0, inputs)
	submitted := m.now.UnixMilli()
	for i, id := range sc.ids {
		if id < s.first {
			continue
		}
		spec := &ev.Tasks[i]
		b, t := m.at(id)
		r.Tasks = append(r.Tasks, TaskRow{Task: id, Key: spec.Key, Op: spec.Op, Options: spec.Options, Inputs: t.inputs,
			Arguments: spec.Arguments, Position: t.rank & positionMask, Submitted: submitted})
		edges := b.edgesOf(t)
		for k := range edges {
			e := &edges[k]
			r.Inputs = append(r.Inputs, InputRow{e.input, e.item, e.count.number()})
		}
	}
	m.facts.put(r)
	return r
}

// overLimit returns an error if a submission exceeds a limit of its namespace. Its tasks so far are
// counted already.
func (s *submission) overLimit() *Error {
	ns := s.ns
	for _, l := range [...]struct {
		what, setting string
		used, limit   uint64
	}{
		{"tasks", "--namespace-tasks", ns.tasks, ns.limits.Tasks},
		{"bytes", "--namespace-memory", ns.bytes, ns.limits.Bytes},
	} {
		if l.limit == 0 || l.used <= l.limit {
			continue
		}
		if s.tasksBefore == 0 {
			return invalid("tasks", "the submission has more than the %d %s that namespace %q may hold: submit less at once, put large arguments into objects (scatter), or let the operator raise %s",
				l.limit, l.what, ns.name, l.setting)
		}
		return &Error{Kind: ErrFull, Object: "namespace " + ns.name, Message: fmt.Sprintf(
			"namespace %q may hold %d %s, and holds %d tasks already: submit again when tasks have ended and been released, or let the operator raise %s",
			ns.name, l.limit, l.what, s.tasksBefore, l.setting)}
	}
	return nil
}

// noMemory makes the error for a submission whose records do not fit. held is the memory in use
// before it.
func (m *Machine) noMemory(ev *GraphSubmitted, held uint64) *Error {
	limit := m.config.MemoryBytes
	var needs uint64
	for i := range ev.Tasks {
		s := &ev.Tasks[i]
		needs += taskBytes + uint64(len(s.Key)+len(s.Arguments)) + inputBytes*uint64(len(s.Inputs))
	}
	if needs > limit {
		return invalid("tasks", "the submission needs %d bytes of the scheduler's memory, which may use %d: submit less at once, and put large arguments into objects (scatter)",
			needs, limit)
	}
	return &Error{Kind: ErrFull, Object: "memory", Message: fmt.Sprintf(
		"the scheduler holds %d of %d bytes for %d tasks, and the submission needs %d: submit it again when tasks have ended and been released, pass large arguments as objects (scatter), or give the scheduler more memory",
		held+ev.CallerBytes, limit, m.totals.Tasks, needs)}
}
