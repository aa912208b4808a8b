package journal

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
)

// rowKind is the number of a type of rows of package coord. Numbers are never used again.
type rowKind uint8

const (
	rowValue rowKind = iota + 1
	rowVariable
	rowEvent
	rowQueue
	rowOpener
	rowItem
	rowTopic
	rowMessage
	rowGrant
	rowAnswer
	rowMetadata
)

func rowKindOf(r coord.Row) rowKind {
	switch r.(type) {
	case nil:
		return 0
	case coord.ValueRow:
		return rowValue
	case coord.VariableRow:
		return rowVariable
	case coord.EventRow:
		return rowEvent
	case coord.QueueRow:
		return rowQueue
	case coord.OpenerRow:
		return rowOpener
	case coord.ItemRow:
		return rowItem
	case coord.TopicRow:
		return rowTopic
	case coord.MessageRow:
		return rowMessage
	case coord.GrantRow:
		return rowGrant
	case coord.AnswerRow:
		return rowAnswer
	case coord.MetadataRow:
		return rowMetadata
	}
	panic(fmt.Sprintf("a %T is no row of the journal", r))
}

// newRow returns an empty row; nil if the kind is unknown.
func newRow(k rowKind) coord.Row {
	switch k {
	case rowValue:
		return coord.ValueRow{}
	case rowVariable:
		return coord.VariableRow{}
	case rowEvent:
		return coord.EventRow{}
	case rowQueue:
		return coord.QueueRow{}
	case rowOpener:
		return coord.OpenerRow{}
	case rowItem:
		return coord.ItemRow{}
	case rowTopic:
		return coord.TopicRow{}
	case rowMessage:
		return coord.MessageRow{}
	case rowGrant:
		return coord.GrantRow{}
	case rowAnswer:
		return coord.AnswerRow{}
	case rowMetadata:
		return coord.MetadataRow{}
	}
	return nil
}

// coordChange codes a change of a row of package coord.
func (c *codec) coordChange(change *coord.Change) {
	c.flag(&change.Gone)
	k := rowKindOf(change.Row)
	whole(c, &k)
	if c.reading {
		if change.Row = newRow(k); change.Row == nil {
			if c.err == nil {
				c.fail(fmt.Errorf("the kind %d of a row is unknown", k))
			}
			change.Row = coord.EventRow{}
			return
		}
	}
	name := func(namespace, name *string) {
		c.text(namespace)
		c.text(name)
	}
	switch r := change.Row.(type) {
	case coord.ValueRow:
		whole(c, &r.Number)
		c.text(&r.Namespace)
		c.payload(&r.Value.Data)
		texts(c, &r.Value.Keys)
		whole(c, &r.Value.Hold)
		list(c, &r.Value.Tasks, func(c *codec, id *ids.TaskID) { whole(c, id) })
		change.Row = r
	case coord.VariableRow:
		name(&r.Namespace, &r.Name)
		whole(c, &r.Value)
		change.Row = r
	case coord.EventRow:
		name(&r.Namespace, &r.Name)
		change.Row = r
	case coord.QueueRow:
		name(&r.Namespace, &r.Name)
		whole(c, &r.MaxSize)
		change.Row = r
	case coord.OpenerRow:
		whole(c, &r.Client)
		name(&r.Namespace, &r.Name)
		change.Row = r
	case coord.ItemRow:
		name(&r.Namespace, &r.Name)
		whole(c, &r.Value)
		change.Row = r
	case coord.TopicRow:
		name(&r.Namespace, &r.Name)
		whole(c, &r.Base)
		change.Row = r
	case coord.MessageRow:
		name(&r.Namespace, &r.Name)
		whole(c, &r.Number)
		c.time(&r.At)
		whole(c, &r.Value)
		change.Row = r
	case coord.GrantRow:
		whole(c, &r.Number)
		whole(c, &r.Client)
		c.text(&r.ID)
		c.text(&r.Namespace)
		texts(c, &r.Ask.Names)
		whole(c, &r.Ask.Limit)
		needed := uint64(r.Ask.Needed)
		whole(c, &needed)
		r.Ask.Needed = int(needed)
		texts(c, &r.Names)
		c.flag(&r.Given)
		change.Row = r
	case coord.AnswerRow:
		whole(c, &r.Client)
		c.text(&r.ID)
		c.text(&r.Namespace)
		whole(c, &r.Kind)
		c.text(&r.Name)
		texts(c, &r.Names)
		list(c, &r.Values, func(c *codec, n *uint64) { whole(c, n) })
		c.flag(&r.Given)
		change.Row = r
	case coord.MetadataRow:
		c.text(&r.Namespace)
		texts(c, &r.Path)
		whole(c, &r.Number)
		c.flag(&r.IsLeaf)
		c.payload(&r.Leaf)
		change.Row = r
	}
}

// time codes a time; zero is one, too. The monotonic reading is lost.
func (c *codec) time(t *time.Time) {
	var nanos int64
	if !t.IsZero() {
		nanos = t.UnixNano()
	}
	whole(c, &nanos)
	if c.reading && nanos != 0 {
		*t = time.Unix(0, nanos)
	}
}
