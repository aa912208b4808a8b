package coord

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Row is a durable fact, one of the types of this file. All rows together are what a machine knows
// after a restart: everything but calls that wait.
type Row interface{ key() key }

// Change is a row that was put, or one that is gone: then only what names it is set, and the Hold
// of a ValueRow. A put of a row that is there replaces it.
type Change struct {
	Row  Row
	Gone bool
}

// Coordinated are changes that belong together: a restart has all of them or none.
type Coordinated struct{ Changes []Change }

// ValueRow is a value. Other rows say where it is. It is put also for a call that waits if it keeps
// results.
type ValueRow struct {
	Number    uint64
	Namespace string
	Value     Value
}

// VariableRow is a variable that has a value.
type VariableRow struct {
	Namespace, Name string
	Value           uint64
}

// EventRow is an event that is set.
type EventRow struct{ Namespace, Name string }

// QueueRow is a queue.
type QueueRow struct {
	Namespace, Name string
	MaxSize         uint32
}

// OpenerRow is a client that has opened a queue.
type OpenerRow struct {
	Client          ids.ClientID
	Namespace, Name string
}

// ItemRow is a value in a queue, which has the order of their numbers.
type ItemRow struct {
	Namespace, Name string
	Value           uint64
}

// TopicRow is a topic. Its messages are numbered after Base.
type TopicRow struct {
	Namespace, Name string
	Base            uint64
}

// MessageRow is a message that a topic keeps.
type MessageRow struct {
	Namespace, Name string
	Number          uint64
	At              time.Time
	Value           uint64
}

// GrantRow is what an Acquire has got. Number is its fencing number.
type GrantRow struct {
	Number    uint64
	Client    ids.ClientID
	ID        string
	Namespace string
	Ask       Acquire
	// Names are the locks that are held. Given means that the caller was told.
	Names []string
	Given bool
}

// AnswerRow is the answer to a call that may be repeated.
type AnswerRow struct {
	Client    ids.ClientID
	ID        string
	Namespace string
	Kind      AnswerKind
	// Name is that of the queue, variable or topic. Names are the locks of an AnswerReleased.
	Name   string
	Names  []string
	Values []uint64
	Given  bool
}

// AnswerKind says which call an AnswerRow answers.
type AnswerKind uint8

// Kinds of answers. Their numbers are in journals.
const (
	AnswerPut      AnswerKind = 1
	AnswerTaken    AnswerKind = 2
	AnswerVariable AnswerKind = 3
	AnswerTopic    AnswerKind = 4
	// AnswerReleased: locks were given back.
	AnswerReleased AnswerKind = 5
)

// MetadataRow is a node of the metadata. Siblings have the order of their numbers.
type MetadataRow struct {
	Namespace string
	Path      []string
	Number    uint64
	// IsLeaf means that it has the value Leaf, and no children.
	IsLeaf bool
	Leaf   []byte
}

// kind is the type of a row. A restart builds rows in the order of the kinds.
type kind uint8

const (
	kindValue kind = iota + 1
	kindVariable
	kindEvent
	kindQueue
	kindOpener
	kindItem
	kindTopic
	kindMessage
	kindGrant
	kindAnswer
	kindMetadata
)

// key names a row among all rows.
type key struct {
	kind            kind
	namespace, name string
	number          uint64
	client          ids.ClientID
}

func (r ValueRow) key() key    { return key{kind: kindValue, number: r.Number} }
func (r VariableRow) key() key { return key{kind: kindVariable, namespace: r.Namespace, name: r.Name} }
func (r EventRow) key() key    { return key{kind: kindEvent, namespace: r.Namespace, name: r.Name} }
func (r QueueRow) key() key    { return key{kind: kindQueue, namespace: r.Namespace, name: r.Name} }
func (r OpenerRow) key() key {
	return key{kind: kindOpener, namespace: r.Namespace, name: r.Name, client: r.Client}
}

func (r ItemRow) key() key {
	return key{kind: kindItem, namespace: r.Namespace, name: r.Name, number: r.Value}
}
func (r TopicRow) key() key { return key{kind: kindTopic, namespace: r.Namespace, name: r.Name} }
func (r MessageRow) key() key {
	return key{kind: kindMessage, namespace: r.Namespace, name: r.Name, number: r.Number}
}
func (r GrantRow) key() key  { return key{kind: kindGrant, number: r.Number} }
func (r AnswerRow) key() key { return key{kind: kindAnswer, name: r.ID, client: r.Client} }
func (r MetadataRow) key() key {
	return key{kind: kindMetadata, namespace: r.Namespace, name: strings.Join(r.Path, "\x00")}
}

// size is the memory of a row that a piece of a snapshot counts.
func size(r Row) uint64 {
	switch r := r.(type) {
	case ValueRow:
		return r.Value.size()
	case MetadataRow:
		return uint64(len(r.Leaf)) + 64
	}
	return 64
}

// table has all rows of a machine, in the order in which each was put first.
type table struct {
	entries []entry
	// at is the number of the entry of each row. next is the one of the next entry.
	at   map[key]uint64
	next uint64
}

// entry is a row; nil: it is gone.
type entry struct {
	number uint64
	row    Row
}

func newTable() *table { return &table{at: map[key]uint64{}, next: 1} }

// from returns the place of the first entry that has a number or a higher one.
func (t *table) from(number uint64) int {
	i, _ := slices.BinarySearchFunc(t.entries, number, func(e entry, number uint64) int { return cmp.Compare(e.number, number) })
	return i
}

// apply puts or removes a row. It does nothing for a row that is gone already.
func (t *table) apply(c Change) {
	k := c.Row.key()
	number, known := t.at[k]
	switch {
	case known && !c.Gone:
		t.entries[t.from(number)].row = c.Row
	case known:
		t.entries[t.from(number)].row = nil
		delete(t.at, k)
		if len(t.entries) > 2*len(t.at)+100 {
			t.entries = slices.DeleteFunc(t.entries, func(e entry) bool { return e.row == nil })
		}
	case !c.Gone:
		t.at[k] = t.next
		t.entries = append(t.entries, entry{t.next, c.Row})
		t.next++
	}
}

// pieceBytes bounds a piece of Rows; a single row may be larger.
const pieceBytes = 1 << 20

// Rows calls put, with a *Coordinated, for the rows of a piece: those from the cursor on. That is 0
// for the first piece and then what the call before has returned. It returns false after the last
// piece. Between two pieces the machine may go on: rows that are put or gone meanwhile may be in a
// piece or not.
func (m *Machine) Rows(cursor uint64, put func(row any)) (next uint64, more bool) {
	var piece []Change
	bytes := uint64(0)
	at := m.table.from(cursor)
	for ; at < len(m.table.entries) && len(piece) < m.config.Piece && bytes < pieceBytes; at++ {
		e := m.table.entries[at]
		cursor = e.number + 1
		if e.row != nil {
			piece = append(piece, Change{Row: e.row})
			bytes += size(e.row)
		}
	}
	if len(piece) > 0 {
		put(&Coordinated{Changes: piece})
	}
	return cursor, at < len(m.table.entries)
}

// put notes that a row is so now, gone that it is not any more.
func (m *Machine) put(r Row)  { m.change(Change{Row: r}) }
func (m *Machine) gone(r Row) { m.change(Change{Row: r, Gone: true}) }

func (m *Machine) change(c Change) {
	if !m.config.Durable || m.loading {
		return
	}
	m.table.apply(c)
	if n := len(m.changes); n > 0 && m.changes[n-1].Row.key() == c.Row.key() {
		m.changes[n-1] = c
		return
	}
	m.changes = append(m.changes, c)
}

// keep makes a value durable.
func (m *Machine) keep(v *stored) uint64 {
	if !v.durable {
		v.durable = true
		m.put(ValueRow{Number: v.number, Namespace: v.namespace, Value: v.Value})
	}
	return v.number
}

// row returns the row of what it is called for.
func (g *grant) row() GrantRow {
	return GrantRow{Number: g.number, Client: g.client.id, ID: g.id, Namespace: g.space.name, Ask: g.ask, Names: g.names, Given: g.given}
}

func (q *queue) row() QueueRow {
	return QueueRow{Namespace: q.space.name, Name: q.name, MaxSize: q.maxSize}
}

func (n *node) row(s *space) MetadataRow {
	return MetadataRow{Namespace: s.name, Path: n.path, Number: n.number, IsLeaf: n.leaf != nil, Leaf: n.leaf}
}

// isAnswer reports whether the answer to a request must survive: the call may be repeated, and
// would not get the same once more.
func (r *request) isAnswer() bool {
	if r.client == nil || r.id == "" || !r.met {
		return false
	}
	switch r.ask.(type) {
	case PutInQueue, released:
		return true
	}
	return len(r.got) > 0
}

// row returns the row of an answer. Its values are durable already.
func (r *request) row() AnswerRow {
	row := AnswerRow{Client: r.client.id, ID: r.id, Namespace: r.space.name, Given: r.given}
	switch ask := r.ask.(type) {
	case PutInQueue:
		row.Kind, row.Name = AnswerPut, ask.Name
	case TakeFromQueue:
		row.Kind, row.Name = AnswerTaken, ask.Name
	case ReadVariable:
		row.Kind, row.Name = AnswerVariable, ask.Name
	case ReadTopic:
		row.Kind, row.Name = AnswerTopic, ask.Name
	case released:
		row.Kind, row.Names = AnswerReleased, ask.names
	}
	for _, v := range r.got {
		row.Values = append(row.Values, v.number)
	}
	return row
}

// putAnswer notes the answer to a request, if it must survive.
func (m *Machine) putAnswer(r *request) {
	if r.isAnswer() {
		r.durable = true
		m.put(r.row())
	}
}
