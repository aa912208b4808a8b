package millrace

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Field numbers of Template, TemplateValue, TemplateInstances, TemplateInstance, and of the fields
// of SubmitRequest that have to do with them.
const (
	fieldSubmitPackedTemplates = 7
	fieldSubmitInstances       = 8
	fieldTemplateOps           = 1
	fieldTemplateOptions       = 3
	fieldTemplateTasks         = 4
	fieldTemplateValues        = 5
	fieldTemplateInputs        = 6
	fieldHoleName              = 1
	fieldHoleType              = 2
	fieldInstancesHash         = 1
	fieldInstancesPrefix       = 3
	fieldInstancesInstances    = 4
	fieldInstanceKey           = 1
	fieldInstanceValues        = 3
	fieldInstanceInputs        = 4
)

// ValueType is the type of the values of a Hole.
type ValueType = millracev1.ValueType

// The types of values, by short names.
const (
	TypeAny     = millracev1.ValueType_VALUE_TYPE_UNSPECIFIED
	TypeNull    = millracev1.ValueType_VALUE_TYPE_NULL
	TypeBool    = millracev1.ValueType_VALUE_TYPE_BOOL
	TypeInt     = millracev1.ValueType_VALUE_TYPE_INT
	TypeDouble  = millracev1.ValueType_VALUE_TYPE_DOUBLE
	TypeString  = millracev1.ValueType_VALUE_TYPE_STRING
	TypeBytes   = millracev1.ValueType_VALUE_TYPE_BYTES
	TypeList    = millracev1.ValueType_VALUE_TYPE_LIST
	TypeMap     = millracev1.ValueType_VALUE_TYPE_MAP
	TypeArray   = millracev1.ValueType_VALUE_TYPE_TENSOR
	TypeOpaque  = millracev1.ValueType_VALUE_TYPE_OPAQUE
	TypeTable   = millracev1.ValueType_VALUE_TYPE_TABLE
	TypeComplex = millracev1.ValueType_VALUE_TYPE_COMPLEX
)

// Hole is an argument of a task in a template. Each instance of the template gives its value.
// TemplateBuilder.Value makes it.
type Hole struct {
	template *TemplateBuilder
	index    int
}

func appendHole(b []byte, h Hole, in *inputList) ([]byte, error) {
	if h.template == nil || in == nil || in.template != h.template {
		return nil, errors.New("a Hole is an argument of tasks of the template that made it, and of no others")
	}
	in.holed = true
	return appendVarintField(b, fieldValueHole, uint64(h.index)), nil
}

// TemplateBuilder builds a Template. It is not safe for concurrent use.
type TemplateBuilder struct {
	client *Client
	name   string
	tables tables
	tasks  []byte
	keys   []string
	held   []string
	values []string
	types  []ValueType
	inputs []string
	s      scratch
	err    error
}

// NewTemplate begins a template. The name is meant for people. It is the name of the graphs that
// are made, and the beginning of their keys.
func (c *Client) NewTemplate(name string) *TemplateBuilder {
	t := &TemplateBuilder{client: c, name: name, tables: tables{template: true}}
	t.s.inputs.template = t
	return t
}

// Value adds a hole for an argument, or for a part of one. The name is meant for people. The
// scheduler refuses values of other types than kind; TypeAny allows all.
func (t *TemplateBuilder) Value(name string, kind ValueType) Hole {
	t.values, t.types = append(t.values, name), append(t.types, kind)
	return Hole{t, len(t.values) - 1}
}

// Input adds a hole for the result of a task outside of the template. No task of the template has
// the same key.
func (t *TemplateBuilder) Input(name string) Key {
	t.inputs = append(t.inputs, name)
	return Key(name)
}

// Add adds a task and returns its key, to be used as an argument of other tasks of the template,
// added earlier or later. In an instance, the key has the key of the instance before it. If key is
// empty, the number of the task is its key. The first invalid argument is recorded, and Template
// returns it as an error.
func (t *TemplateBuilder) Add(key string, op Op, args Arguments, options ...TaskOption) Key {
	var o taskOptions
	rules, err := t.s.encode(&o, args, options)
	if o.key = cmp.Or(o.key, key); o.key == "" {
		o.key = strconv.Itoa(len(t.keys))
	}
	if err == nil && len(t.s.inputs.futures) > 0 {
		err = fmt.Errorf("a Future (%s) is no argument of a template: add an Input, and give the Future to each instance", t.s.inputs.futures[0].key)
	}
	if err != nil {
		if t.err == nil {
			t.err = fmt.Errorf("millrace: template %q: task %q: %w", t.name, o.key, err)
		}
		return Key(o.key)
	}
	fields := specFields{fieldTemplateTasks, fieldSpecPacked}
	if t.s.inputs.holed {
		fields.arguments = fieldSpecArguments // The scheduler reads these.
	}
	t.tasks = appendTask(t.tasks, fields, o.key, t.tables.op(op), t.s.inputs.keys, t.s.inputs.items, t.s.packed, t.tables.option(rules), o.hold)
	t.keys = append(t.keys, o.key)
	if o.hold {
		t.held = append(t.held, o.key)
	}
	return Key(o.key)
}

// Template is the shape of a graph. Each Run makes instances of it, with one short message for many
// tasks. It does not change, and its methods may be called from any goroutine.
type Template struct {
	client         *Client
	name           string
	packed         []byte
	hash           [sha256.Size]byte
	tasks          int
	held           []string
	values, inputs []string
}

// Template returns the template. At least one task must be held.
func (t *TemplateBuilder) Template() (*Template, error) {
	switch {
	case t.err != nil:
		return nil, t.err
	case len(t.keys) == 0:
		return nil, fmt.Errorf("millrace: template %q has no tasks", t.name)
	case len(t.held) == 0:
		return nil, fmt.Errorf("millrace: template %q keeps no result: add the tasks whose results you want with millrace.Hold()", t.name)
	}
	packed := append(bytes.Clone(t.tables.encoded), t.tasks...)
	for i, name := range t.values {
		var start int
		packed, start = openMessage(packed, fieldTemplateValues)
		packed = appendStringField(packed, fieldHoleName, name)
		if t.types[i] != TypeAny {
			packed = appendVarintField(packed, fieldHoleType, uint64(t.types[i]))
		}
		packed = closeMessage(packed, start)
	}
	for _, name := range t.inputs {
		packed = appendStringField(packed, fieldTemplateInputs, name)
	}
	return &Template{
		client: t.client, name: t.name, packed: packed, hash: sha256.Sum256(packed), tasks: len(t.keys),
		held: slices.Clone(t.held), values: slices.Clone(t.values), inputs: slices.Clone(t.inputs),
	}, nil
}

// Len returns the number of tasks of an instance.
func (t *Template) Len() int { return t.tasks }

// Instance is what one instance adds to its template.
type Instance struct {
	// Key is the beginning of the keys of its tasks. Empty: the client makes one.
	Key string
	// Values are the values of the holes for arguments, in the order of TemplateBuilder.Value: what
	// Args takes, without references to tasks.
	Values []any
	// Inputs are the tasks in the holes for inputs, each a *Future or a Key, in the order of
	// TemplateBuilder.Input.
	Inputs []any
}

// TemplateRun is a number of instances that were submitted together.
type TemplateRun struct {
	// ID is the number of their graph.
	ID uint64
	// Tasks is the number of tasks.
	Tasks int
	// Joined is the number of these tasks that the scheduler knew already under the same key.
	Joined uint64

	futures []*Future
	held    int
}

// Futures returns the futures of the held tasks of all instances, in the order of the instances and
// then of the tasks.
func (r *TemplateRun) Futures() []*Future { return r.futures }

// Instance returns the futures of the held tasks of one instance, in the order of the tasks.
func (r *TemplateRun) Instance(i int) []*Future { return r.futures[i*r.held : (i+1)*r.held] }

// Wait waits until all held tasks have ended, and returns the first error.
func (r *TemplateRun) Wait(ctx context.Context) error { return WaitAll(ctx, r.futures...) }

// Release gives up all results.
func (r *TemplateRun) Release() {
	if len(r.futures) > 0 {
		r.futures[0].client.Release(r.futures...)
	}
}

// Run makes instances, as one submission: either all of them are accepted, or nothing runs. It
// returns when the scheduler has accepted them. The definition of the template is sent only if the
// scheduler does not know it.
func (t *Template) Run(ctx context.Context, instances ...Instance) (*TemplateRun, error) {
	c := t.client
	switch {
	case len(instances) == 0:
		return &TemplateRun{held: len(t.held)}, nil
	case c.config.leaseless:
		return nil, fmt.Errorf("millrace: template %q: the client has no lease (WithoutLease), so it cannot hold results", t.name)
	case c.closed.Load():
		return nil, ErrClosed
	}
	message := instanceMessage{template: t, prefix: t.prefix()}
	slab := make([]Future, len(instances)*len(t.held))
	futures := make([]*Future, len(slab))
	keyed, queued := false, false
	for i := range instances {
		keyed = keyed || instances[i].Key != ""
		for _, input := range instances[i].Inputs {
			f, future := input.(*Future)
			queued = queued || !future || f != nil && f.State() == Queued
		}
	}
	for i := range instances {
		before, key := "", instances[i].Key // all that comes before the keys of the template
		if key == "" {
			key = strconv.Itoa(i) + "-"
			if keyed {
				key = message.prefix + key
			} else {
				before = message.prefix
			}
		}
		if err := message.add(key, &instances[i], keyed); err != nil {
			return nil, fmt.Errorf("millrace: template %q: instance %d: %w", t.name, i, err)
		}
		for k, suffix := range t.held {
			f := &slab[i*len(t.held)+k]
			f.client, f.key = c, before+key+suffix
			futures[i*len(t.held)+k] = f
		}
	}
	// Inputs may be queued tasks, which are sent first. Errors of these tasks belong to their own
	// futures.
	if queued {
		if err := c.Flush(ctx); err != nil && (ctx.Err() != nil || errors.Is(err, ErrClosed)) {
			return nil, err
		}
	}
	out, err := c.runTemplate(withSpan(ctx, c.traceparent(ctx)), t, message.end(), futures, keyed)
	if err != nil {
		return nil, err
	}
	return &TemplateRun{ID: out.GetGraphId(), Tasks: len(instances) * t.tasks, Joined: out.GetJoinedTasks(), futures: futures, held: len(t.held)}, nil
}

// runTemplate submits instances, and binds the futures of their held tasks.
func (c *Client) runTemplate(ctx context.Context, t *Template, chunks [][]byte, futures []*Future, keyed bool) (*millracev1.SubmitResponse, error) {
	header, err := encodeHeader(&millracev1.SubmitHeader{ClientId: c.lease.Load(), Name: t.name, RequestId: newRequestID()})
	if err != nil {
		return nil, err
	}
	if keyed {
		done, err := c.takeHolds(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	c.futures.begin()
	defer c.futures.end()
	var out millracev1.SubmitResponse
	var definition []byte
	for {
		err := c.retryFor(ctx, "Submit", c.config.reconnect, func(ctx context.Context) error {
			out.Reset()
			return c.sendInstances(ctx, append(wireMessage{header}, definition), chunks, &out)
		})
		if err != nil {
			return nil, err
		}
		if len(out.GetMissingTemplates()) == 0 {
			break
		}
		if definition != nil {
			return nil, fmt.Errorf("millrace: Submit: the scheduler got the definition of template %q, and asks for it again", t.name)
		}
		definition = appendBytesField(nil, fieldSubmitPackedTemplates, t.packed)
	}
	if len(out.GetTaskIds()) != len(futures) {
		return nil, fmt.Errorf("millrace: Submit: the scheduler answered %d numbers for the %d held tasks of template %q", len(out.GetTaskIds()), len(futures), t.name)
	}
	c.futures.bind(futures, out.GetTaskIds(), out.GetRevision(), out.GetFailedTaskIds())
	return &out, nil
}

// sendInstances sends one submission: its beginning, then chunks.
func (c *Client) sendInstances(ctx context.Context, begin wireMessage, chunks [][]byte, out *millracev1.SubmitResponse) error {
	if len(chunks) == 1 {
		return c.conn.Invoke(ctx, millracev1.SchedulerService_SubmitBatch_FullMethodName, append(begin, chunks[0]), out)
	}
	messages := make([]wireMessage, 0, len(chunks)+1)
	messages = append(messages, begin)
	for _, chunk := range chunks {
		messages = append(messages, wireMessage{chunk})
	}
	return c.sendChunks(ctx, messages, out)
}

// prefix makes the beginning of the keys of a Run.
func (t *Template) prefix() string {
	return strings.ToValidUTF8(t.name[:min(len(t.name), 64)], "") + "-" + t.client.nonce + "-" + strconv.FormatUint(t.client.nextKey.Add(1), 10) + "-"
}

// instanceMessage encodes instances into chunks.
type instanceMessage struct {
	template *Template
	prefix   string
	chunks   [][]byte
	body     []byte // of the open TemplateInstances message
}

// add adds an instance. whole means that key is all that comes before the keys of the template.
func (m *instanceMessage) add(key string, in *Instance, whole bool) error {
	t := m.template
	if len(in.Values) != len(t.values) {
		return fmt.Errorf("it has %d values, and the template has %d holes for arguments (%s)", len(in.Values), len(t.values), strings.Join(t.values, ", "))
	}
	if len(in.Inputs) != len(t.inputs) {
		return fmt.Errorf("it has %d inputs, and the template has %d holes for inputs (%s)", len(in.Inputs), len(t.inputs), strings.Join(t.inputs, ", "))
	}
	if len(m.body) >= chunkBytes {
		m.close()
	}
	if len(m.body) == 0 {
		m.body = appendBytesField(m.body, fieldInstancesHash, t.hash[:])
		if !whole {
			m.body = appendStringField(m.body, fieldInstancesPrefix, m.prefix)
		}
	}
	var start, value int
	var err error
	m.body, start = openMessage(m.body, fieldInstancesInstances)
	m.body = appendStringField(m.body, fieldInstanceKey, key)
	for i, v := range in.Values {
		m.body, value = openMessage(m.body, fieldInstanceValues)
		at := len(m.body)
		if m.body, err = appendValue(m.body, v, nil); err != nil {
			return fmt.Errorf("value %d (%s): %w", i, t.values[i], err)
		}
		if len(m.body)-at > maxArgumentBytes {
			return fmt.Errorf("value %d (%s) takes %.1f MB, the limit is %.1f MB: Scatter it, and make the hole an Input", i, t.values[i],
				float64(len(m.body)-at)/1e6, float64(maxArgumentBytes)/1e6)
		}
		m.body = closeMessage(m.body, value)
	}
	for i, v := range in.Inputs {
		switch v := v.(type) {
		case Key:
			m.body = appendStringField(m.body, fieldInstanceInputs, string(v))
		case *Future:
			if v == nil {
				return fmt.Errorf("input %d (%s) is a nil *Future", i, t.inputs[i])
			}
			m.body = appendStringField(m.body, fieldInstanceInputs, v.key)
		default:
			return fmt.Errorf("input %d (%s) is a %T: give a *Future or a Key", i, t.inputs[i], v)
		}
	}
	m.body = closeMessage(m.body, start)
	return nil
}

func (m *instanceMessage) close() {
	b := appendTag(make([]byte, 0, len(m.body)+2*protowire.SizeVarint(uint64(len(m.body)))+1), fieldSubmitInstances, protowire.BytesType)
	m.chunks = append(m.chunks, append(protowire.AppendVarint(b, uint64(len(m.body))), m.body...))
	m.body = m.body[:0]
}

func (m *instanceMessage) end() [][]byte {
	m.close()
	return m.chunks
}
