package journal

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

// Record is a fact: one of the types of this package, a row of package sched, its event
// ClientClosed, or the facts Coordinated, DrainOrderChanged, PluginChanged and TemplateChanged. All
// are pointers.
// The command "millrace journal show" prints all fields but bytes, so a secret is bytes.
type Record any

// Begun is the first record of each start of the scheduler.
type Begun struct {
	// Cluster and Life are the same in all starts. Starts counts them, from 1.
	Cluster string
	Life    uint64
	Starts  uint64
}

// ClientOpened is a lease that was opened.
type ClientOpened struct {
	Client ids.ClientID
	Spec   schedapi.ClientSpec
}

// ClientOwned follows the ClientOpened of a client that a token has opened: Owner of its spec.
type ClientOwned struct {
	Client ids.ClientID
	Owner  string
}

// ClientAwaits is the lease of a call that waits for a task. It holds the task, and it ends with
// the call, by a ClientClosed.
type ClientAwaits struct {
	Client    ids.ClientID
	Namespace string
}

// DatasetPublished is a dataset.
type DatasetPublished struct {
	Number          uint64
	Name, Namespace string
	Keys            []string
	Value           []byte
	// Replaced is the dataset that had the name before; 0: none.
	Replaced uint64
}

// DatasetUnpublished is the end of a dataset.
type DatasetUnpublished struct {
	Number          uint64
	Name, Namespace string
}

// WorkerNumbered is the number that an incarnation got.
type WorkerNumbered struct {
	Worker            ids.WorkerID
	Name, Incarnation string
}

// WorkerGone means that an incarnation was lost or has left.
type WorkerGone struct{ Worker ids.WorkerID }

// SnapshotBegan is in the first batch of the log that the next snapshot needs.
type SnapshotBegan struct{}

// SnapshotEnded is the last record of a snapshot, which has so many rows before it. The rows are of
// different times: they are a state only together with the log up to the batch Until.
type SnapshotEnded struct{ Rows, Until uint64 }

// kind is the number of a type of records. Numbers are never used again.
type kind uint8

const (
	kindBegun kind = iota + 1
	kindClientOpened
	kindClientClosed
	_ // 4 to 9, 14 and 17 were records of requests, in formats that are not read any more.
	_
	_
	_
	_
	_
	kindDatasetPublished
	kindDatasetUnpublished
	kindWorkerNumbered
	kindWorkerGone
	_
	kindClientOwned
	kindClientAwaits
	_

	// Numbers from 40 on are those of facts that are no tasks.
	kindCoordinated       kind = 40
	kindDrainOrderChanged kind = 41
	kindPluginChanged     kind = 42
	kindTemplateChanged   kind = 43
)

// The kinds from 60 on are those of snapshots.
const (
	kindSnapshotBegan kind = iota + 60
	kindSnapshotEnded
)

// code writes a record, or reads the next one into what it returns.
func (c *codec) code(r Record) Record {
	k := kindOf(r)
	whole(c, &k)
	if c.reading {
		if r = newRecord(k); r == nil {
			c.fail(fmt.Errorf("the kind %d of a record is unknown", k))
			return nil
		}
	}
	switch r := r.(type) {
	case *Begun:
		c.text(&r.Cluster)
		whole(c, &r.Life)
		whole(c, &r.Starts)
	case *ClientOpened:
		whole(c, &r.Client)
		c.clientSpec(&r.Spec)
	case *ClientOwned:
		whole(c, &r.Client)
		c.text(&r.Owner)
	case *ClientAwaits:
		whole(c, &r.Client)
		c.text(&r.Namespace)
	case *SnapshotBegan:
	case *SnapshotEnded:
		whole(c, &r.Rows)
		whole(c, &r.Until)
	case *sched.ClientClosed:
		whole(c, &r.Client)
	case *DatasetPublished:
		whole(c, &r.Number)
		c.text(&r.Name)
		c.text(&r.Namespace)
		texts(c, &r.Keys)
		c.payload(&r.Value)
		whole(c, &r.Replaced)
	case *DatasetUnpublished:
		whole(c, &r.Number)
		c.text(&r.Name)
		c.text(&r.Namespace)
	case *WorkerNumbered:
		whole(c, &r.Worker)
		c.text(&r.Name)
		c.text(&r.Incarnation)
	case *WorkerGone:
		whole(c, &r.Worker)
	case *copies.DrainOrderChanged:
		c.flag(&r.Gone)
		c.text(&r.Name)
		whole(c, &r.Purpose)
		c.text(&r.Reason)
		whole(c, &r.Worker)
		c.time(&r.Since)
		c.time(&r.Until)
		c.time(&r.Lost)
	case *plugins.PluginChanged:
		c.flag(&r.Gone)
		c.text(&r.Name)
		whole(c, &r.Version)
		c.payload(&r.Body)
	case *templates.TemplateChanged:
		c.flag(&r.Gone)
		c.text(&r.Namespace)
		if c.reading {
			r.Template = new(templates.Template)
		}
		c.fixed(r.Hash[:])
		if !r.Gone {
			c.template(r.Template)
		}
	case *coord.Coordinated:
		list(c, &r.Changes, (*codec).coordChange)
	default:
		c.codeFact(r)
	}
	return r
}

func kindOf(r Record) kind {
	switch r.(type) {
	case nil:
		return 0
	case *Begun:
		return kindBegun
	case *ClientOpened:
		return kindClientOpened
	case *ClientOwned:
		return kindClientOwned
	case *ClientAwaits:
		return kindClientAwaits
	case *SnapshotBegan:
		return kindSnapshotBegan
	case *SnapshotEnded:
		return kindSnapshotEnded
	case *sched.ClientClosed:
		return kindClientClosed
	case *DatasetPublished:
		return kindDatasetPublished
	case *DatasetUnpublished:
		return kindDatasetUnpublished
	case *WorkerNumbered:
		return kindWorkerNumbered
	case *WorkerGone:
		return kindWorkerGone
	case *coord.Coordinated:
		return kindCoordinated
	case *copies.DrainOrderChanged:
		return kindDrainOrderChanged
	case *plugins.PluginChanged:
		return kindPluginChanged
	case *templates.TemplateChanged:
		return kindTemplateChanged
	}
	if k := factKindOf(r); k != 0 {
		return kind(k)
	}
	panic(fmt.Sprintf("a %T is no record of the journal", r))
}

// newRecord returns an empty record; nil if the kind is unknown.
func newRecord(k kind) Record {
	switch k {
	case kindBegun:
		return new(Begun)
	case kindClientOpened:
		return new(ClientOpened)
	case kindClientOwned:
		return new(ClientOwned)
	case kindClientAwaits:
		return new(ClientAwaits)
	case kindSnapshotBegan:
		return new(SnapshotBegan)
	case kindSnapshotEnded:
		return new(SnapshotEnded)
	case kindClientClosed:
		return new(sched.ClientClosed)
	case kindDatasetPublished:
		return new(DatasetPublished)
	case kindDatasetUnpublished:
		return new(DatasetUnpublished)
	case kindWorkerNumbered:
		return new(WorkerNumbered)
	case kindWorkerGone:
		return new(WorkerGone)
	case kindCoordinated:
		return new(coord.Coordinated)
	case kindDrainOrderChanged:
		return new(copies.DrainOrderChanged)
	case kindPluginChanged:
		return new(plugins.PluginChanged)
	case kindTemplateChanged:
		return new(templates.TemplateChanged)
	}
	return newFact(factKind(k))
}

// clientSpec codes all but the owner, which has a record of its own.
func (c *codec) clientSpec(s *schedapi.ClientSpec) {
	c.text(&s.Name)
	c.text(&s.Namespace)
	c.text(&s.Origin)
	c.text(&s.Worker)
	c.duration(&s.TTL)
}

func (c *codec) op(o *sched.OpSpec) {
	whole(c, &o.Kind)
	c.text(&o.Name)
	c.fixed(o.Function[:])
}

func (c *codec) options(o *sched.Options) {
	whole(c, &o.Priority)
	whole(c, &o.MaxRetries)
	c.duration(&o.RetryBackoff)
	c.duration(&o.Timeout)
	names := make([]string, 0, len(o.Resources))
	for name := range o.Resources {
		names = append(names, name)
	}
	slices.Sort(names)
	texts(c, &names)
	if c.reading && len(names) > 0 {
		o.Resources = make(map[string]float64, len(names))
	}
	for _, name := range names {
		amount := o.Resources[name]
		c.float(&amount)
		if c.reading {
			o.Resources[name] = amount // Templates share maps with goroutines that read them.
		}
	}
	list(c, &o.Workers, func(c *codec, s *sched.WorkerSelector) {
		whole(c, &s.Worker)
		c.text(&s.Name)
		c.text(&s.Host)
	})
	c.flag(&o.AllowOtherWorkers)
	whole(c, &o.ExpectedOutputBytes)
	whole(c, &o.Slots)
	c.flag(&o.NoWait)
}

func (c *codec) function(f *functions.Function) {
	c.fixed(f.Hash[:])
	c.payload(&f.Payload)
	c.text(&f.Language)
}

func (c *codec) taskError(p **sched.TaskError) {
	some := *p != nil
	c.flag(&some)
	if !some {
		*p = nil
		return
	}
	if c.reading {
		*p = new(sched.TaskError)
	}
	e := *p
	c.text(&e.Reason)
	c.text(&e.Message)
	c.text(&e.OriginKey)
	c.text(&e.Worker)
	whole(c, &e.Attempt)
	whole(c, &e.Attempts)
	c.text(&e.LogTail)
	c.detail(e)
}

// detail codes what the API's message says beyond the fields of an error.
func (c *codec) detail(e *sched.TaskError) {
	var message []byte
	if detail, ok := e.Detail.(*pb.TaskError); ok && !c.reading {
		message, _ = proto.Marshal(detail) // It came in a message, so it is valid.
	}
	c.payload(&message)
	if c.reading && len(message) > 0 {
		detail := new(pb.TaskError)
		if err := proto.Unmarshal(message, detail); err != nil {
			c.fail(err)
			return
		}
		e.Detail, e.DetailBytes = detail, uint64(len(message))
	}
}
