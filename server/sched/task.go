package sched

import (
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// TaskState is the state of a task. The package comment shows the transitions.
type TaskState uint8

// States; the values equal those of the API.
const (
	TaskWaiting   TaskState = 1
	TaskReady     TaskState = 2
	TaskAssigned  TaskState = 3
	TaskRunning   TaskState = 4
	TaskSucceeded TaskState = 5
	TaskFailed    TaskState = 6
	TaskCancelled TaskState = 7
	TaskReleased  TaskState = 8
	// TaskRescuing means that the worker that held the object died, and other workers are copying
	// the object out of its memory.
	TaskRescuing TaskState = 9
)

// Tasks are stored in blocks of blockTasks consecutive ids. Ids are given out densely and never
// reused: id>>blockBits is the block, and the low bits are the index in it. A block owns everything
// of its tasks (keys, arguments, edges, links), so all of this memory is freed at once when the
// last task of the block is forgotten. A record contains no pointers, so the garbage collector
// never scans it, however many tasks there are.
const (
	blockBits  = 10
	blockTasks = 1 << blockBits
	blockMask  = blockTasks - 1
	// maxTaskID leaves 16 bits of a key index slot for the tag.
	maxTaskID = 1<<48 - 1
	// smallBytes is the longest argument that is copied into the block. A longer one stays in the
	// event's slice.
	smallBytes = 4096
	// maxBlockEdges keeps an edge's index within the low bits of an edgeRef.
	maxBlockEdges = 1 << edgeBits
	edgeBits      = 24
	// pooledBlocks bounds the empty blocks that are kept for reuse.
	pooledBlocks = 16
)

// task is the record of one task.
type task struct {
	// rank orders ready tasks, lowest first.
	rank uint64
	// output is the object's size; valid in SUCCEEDED and RESCUING.
	output uint64
	// dependents is the head of the list of edges of the tasks that need this one and are not
	// forgotten.
	dependents edgeRef
	// edge is the index in the block of the first edge; the others, one per input, follow it.
	edge   uint32
	inputs uint32
	// key is the offset of the key's bytes in the block; the arguments follow it unless flagBlob is
	// set.
	key     uint32
	argLen  uint32
	graph   uint32 // slot
	summary uint32 // index in the graph's summaries
	op      uint32 // slot
	options uint32 // slot
	class   uint32 // slot
	attempt uint32
	// worker is the slot + 1 of the worker that has the current attempt. It is 0 in all states but
	// ASSIGNED and RUNNING.
	worker uint32
	// missing counts the input edges whose task has no object; valid in WAITING, and 0 in READY. In
	// ASSIGNED and RUNNING it counts the inputs that a pre-assigned attempt still waits for. It has
	// no meaning in other states.
	missing uint32
	// unfinished counts the edges of active dependents, which need the object.
	unfinished uint32
	// replicas is the head of the list of links to the workers that hold the object. It is empty in
	// all states but SUCCEEDED. The last one in it keeps the object: it made it, or has answered
	// that it keeps it, or was asked to. The others may have copies, which they may drop.
	replicas uint32
	// holders is the head of the list of links to holder slots.
	holders uint32
	// runMicros is the estimated run time in ASSIGNED and RUNNING, and otherwise the last measured
	// one.
	runMicros uint32
	// submitted is the time of submission, in milliseconds since the block's base.
	submitted uint32
	// readied is the time at which the last missing input came to exist, as Machine.millis says.
	readied uint32
	keyLen  uint16
	state   TaskState
	flags   uint8
}

// Flags of a task.
const (
	// flagQueued: the task is in its class's ready queue (state READY).
	flagQueued = 1 << iota
	// flagBackoff: the task is READY but waits for its retry timer.
	flagBackoff
	// flagRunHold: when it was submitted, the task had no holder and no dependent. It runs once for
	// its own sake.
	flagRunHold
	// flagSettling: the task is in Machine.settling.
	flagSettling
	// flagRetracting: the worker was asked to give the current attempt back, and has not answered
	// yet.
	flagRetracting
	// flagPinned: the worker has refused to give the current attempt back. In WAITING, only
	// during a restart: the task is recorded to have succeeded.
	flagPinned
	// flagBlob: the arguments are in the block's blobs, because they are long.
	flagBlob
	// flagTrouble: Machine.trouble has a record for the task.
	flagTrouble
)

// active reports whether the task is on its way to a result.
func (s TaskState) active() bool { return s >= TaskWaiting && s <= TaskRunning }

// undone reports whether a task is on its way to a result that it has not had yet. All decisions on
// requests go by it: after a restart, a task that is recorded to have succeeded is WAITING until a
// worker brings its object, and counts as SUCCEEDED.
func (t *task) undone() bool {
	return t.state.active() && (t.flags&flagPinned == 0 || t.state.assigned())
}

// unended reports whether a graph with such a task has not ended: the task's result does not exist
// yet, or may have to be made again.
func (s TaskState) unended() bool { return s.active() || s == TaskRescuing }

// assigned reports whether a worker has the task.
func (s TaskState) assigned() bool { return s == TaskAssigned || s == TaskRunning }

// edgeRef names an edge: block number << edgeBits | index in the block's edges. 0 means none; index
// 0 of a block is never used.
type edgeRef uint64

// edge is one use of a task's object by another task. It is a node in the producer's doubly linked
// list of dependents.
type edge struct {
	input      ids.TaskID
	next, prev edgeRef
	// item is the item of the object that the task needs; 0: all of it. count says how many items
	// the object has.
	item ids.Item
	// consumer is the index of the using task in the block of the edge.
	consumer uint16
	flags    uint8
	count    itemCount
}

// Flags of an edge.
const (
	// edgeLinked: the edge is in the list of dependents of its input.
	edgeLinked = 1 << iota
	// edgeFetching: the worker of the using task is expected to fetch the item. See
	// worker.fetchingItems.
	edgeFetching
)

// link is a cell of a singly linked list in a block. The list contains replicas (worker slots) or
// holders (holder slots).
type link struct{ value, next uint32 }

type block struct {
	number uint64
	live   int
	tasks  [blockTasks]task
	edges  []edge // [0] unused
	bytes  []byte
	links  []link // [0] unused
	free   uint32 // head of free links
	base   time.Time
	// inline and blobs are allocated when first needed, with blockTasks elements.
	inline [][]byte
	blobs  [][]byte
}

const dirBits = 10

// dir is the directory of blocks. It has two levels, so that one old task keeps only one leaf
// alive.
type dir struct {
	leaves []*dirLeaf
	// trimmed counts the leaves before leaves[0]: dropped ones, and those of ids below the first
	// task's that never existed.
	trimmed uint64
	pool    []*block
}

type dirLeaf struct {
	blocks [1 << dirBits]*block
	used   int
}

func (d *dir) block(n uint64) *block {
	i := n>>dirBits - d.trimmed
	if i >= uint64(len(d.leaves)) {
		return nil
	}
	leaf := d.leaves[i]
	if leaf == nil {
		return nil
	}
	return leaf.blocks[n&(1<<dirBits-1)]
}

// add adds a block of new tasks, which are submitted now.
func (d *dir) add(n uint64, now time.Time) *block {
	if leaf := n >> dirBits; leaf < d.trimmed {
		d.leaves = append(make([]*dirLeaf, d.trimmed-leaf), d.leaves...)
		d.trimmed = leaf
	}
	for n>>dirBits-d.trimmed >= uint64(len(d.leaves)) {
		d.leaves = append(d.leaves, nil)
	}
	i := n>>dirBits - d.trimmed
	if d.leaves[i] == nil {
		d.leaves[i] = new(dirLeaf)
	}
	var b *block
	if k := len(d.pool); k > 0 {
		b, d.pool[k-1] = d.pool[k-1], nil
		d.pool = d.pool[:k-1]
	} else {
		b = new(block)
	}
	b.number, b.base = n, now.Add(-time.Duration(now.Nanosecond()%1e6)) // whole milliseconds
	if len(b.edges) == 0 {
		b.edges = append(b.edges, edge{})
	}
	if len(b.links) == 0 {
		b.links = append(b.links, link{})
	}
	d.leaves[i].blocks[n&(1<<dirBits-1)] = b
	d.leaves[i].used++
	return b
}

func (d *dir) remove(b *block) {
	i := b.number>>dirBits - d.trimmed
	leaf := d.leaves[i]
	leaf.blocks[b.number&(1<<dirBits-1)] = nil
	if leaf.used--; leaf.used == 0 {
		d.leaves[i] = nil
	}
	// Keep the last leaf: the next block may belong to it.
	k := 0
	for k < len(d.leaves)-1 && d.leaves[k] == nil {
		k++
	}
	if k > 0 {
		n := copy(d.leaves, d.leaves[k:])
		clear(d.leaves[n:])
		d.leaves = d.leaves[:n]
		d.trimmed += uint64(k)
	}
	if len(d.pool) < pooledBlocks && cap(b.bytes) <= 512<<10 && cap(b.edges) <= 16<<10 && cap(b.links) <= 16<<10 {
		bytes, edges, links := b.bytes[:0], b.edges[:0], b.links[:0]
		*b = block{bytes: bytes, edges: edges, links: links}
		d.pool = append(d.pool, b)
	}
}

// each visits the blocks with numbers from from on, in order, until visit returns false.
func (d *dir) each(from uint64, visit func(*block) bool) {
	first := uint64(0)
	if l := from >> dirBits; l > d.trimmed {
		first = l - d.trimmed
	}
	for i := first; i < uint64(len(d.leaves)); i++ {
		if d.leaves[i] == nil {
			continue
		}
		for _, b := range d.leaves[i].blocks {
			if b != nil && b.number >= from && !visit(b) {
				return
			}
		}
	}
}

// push prepends a value to the list at head.
func (b *block) push(head *uint32, value uint32) {
	i := b.free
	if i != 0 {
		b.free = b.links[i].next
	} else {
		i = uint32(len(b.links))
		b.links = append(b.links, link{})
	}
	b.links[i] = link{value: value, next: *head}
	*head = i
}

// drop removes a value from the list at head and reports whether it was there.
func (b *block) drop(head *uint32, value uint32) bool {
	for at := head; *at != 0; at = &b.links[*at].next {
		i := *at
		if b.links[i].value == value {
			*at = b.links[i].next
			b.links[i] = link{next: b.free}
			b.free = i
			return true
		}
	}
	return false
}

// moveToEnd moves a value that is in the list at head to its end.
func (b *block) moveToEnd(head *uint32, value uint32) {
	moved := uint32(0)
	at := head
	for *at != 0 {
		if i := *at; b.links[i].value == value {
			moved, *at = i, b.links[i].next
		} else {
			at = &b.links[i].next
		}
	}
	if moved != 0 {
		*at, b.links[moved].next = moved, 0
	}
}

func (b *block) has(head, value uint32) bool {
	for i := head; i != 0; i = b.links[i].next {
		if b.links[i].value == value {
			return true
		}
	}
	return false
}

func (b *block) length(head uint32) int {
	n := 0
	for i := head; i != 0; i = b.links[i].next {
		n++
	}
	return n
}

func (b *block) keyOf(t *task) []byte { return b.bytes[t.key : t.key+uint32(t.keyLen)] }

func (b *block) argsOf(t *task, index uint64) []byte {
	if t.flags&flagBlob != 0 {
		return b.blobs[index]
	}
	at := t.key + uint32(t.keyLen)
	return b.bytes[at : at+t.argLen : at+t.argLen]
}

func (b *block) edgesOf(t *task) []edge { return b.edges[t.edge : t.edge+t.inputs] }

func (b *block) inlineOf(index uint64) []byte {
	if b.inline == nil {
		return nil
	}
	return b.inline[index]
}

// taskSet is a set of task ids: one bit per id, in chunks of one block each. members returns the
// ids in order.
type taskSet struct {
	chunks map[uint64]*taskChunk
	count  int
	// recent is the chunk that was used last.
	recent       *taskChunk
	recentNumber uint64
}

type taskChunk struct {
	bits  [blockTasks / 64]uint64
	count int
}

func (s *taskSet) chunk(n uint64) *taskChunk {
	if s.count == 0 {
		return nil
	}
	if s.recent != nil && s.recentNumber == n {
		return s.recent
	}
	c := s.chunks[n]
	if c != nil {
		s.recent, s.recentNumber = c, n
	}
	return c
}

func (s *taskSet) has(id ids.TaskID) bool {
	c := s.chunk(uint64(id) >> blockBits)
	return c != nil && c.bits[id&blockMask>>6]&(1<<(id&63)) != 0
}

// add adds a task and reports whether it was new.
func (s *taskSet) add(id ids.TaskID) bool {
	n := uint64(id) >> blockBits
	c := s.chunk(n)
	if c == nil {
		if s.chunks == nil {
			s.chunks = make(map[uint64]*taskChunk)
		}
		c = new(taskChunk)
		s.chunks[n] = c
		s.recent, s.recentNumber = c, n
	}
	word, bit := &c.bits[id&blockMask>>6], uint64(1)<<(id&63)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	c.count++
	s.count++
	return true
}

// remove removes a task and reports whether it was there.
func (s *taskSet) remove(id ids.TaskID) bool {
	n := uint64(id) >> blockBits
	c := s.chunk(n)
	if c == nil {
		return false
	}
	word, bit := &c.bits[id&blockMask>>6], uint64(1)<<(id&63)
	if *word&bit == 0 {
		return false
	}
	*word &^= bit
	s.count--
	if c.count--; c.count == 0 {
		s.recent = nil
		delete(s.chunks, n)
		if len(s.chunks) == 0 {
			// A Go map never shrinks, so drop it.
			s.chunks = nil
		}
	}
	return true
}

// members appends the ids to out, in order.
func (s *taskSet) members(out []ids.TaskID) []ids.TaskID {
	for _, n := range slices.Sorted(maps.Keys(s.chunks)) {
		c := s.chunks[n]
		for w, word := range c.bits {
			for ; word != 0; word &= word - 1 {
				out = append(out, ids.TaskID(n<<blockBits|uint64(w)<<6|uint64(bits.TrailingZeros64(word))))
			}
		}
	}
	return out
}

func (t *task) wanted() bool {
	return t.holders != 0 || t.unfinished > 0 || t.flags&flagRunHold != 0
}

const (
	// taskBytes is the approximate size of a task without its key, arguments and inputs. inputBytes
	// is the approximate size of one input.
	taskBytes, inputBytes = 260, 48
)

// heldBytes is the approximate memory of one task's record.
func (t *task) heldBytes() uint64 {
	return taskBytes + uint64(t.keyLen) + uint64(t.argLen) + inputBytes*uint64(t.inputs)
}
