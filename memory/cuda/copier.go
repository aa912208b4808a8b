package cuda

import (
	"errors"
	"fmt"
	"sync"
)

// copierTables is the number of sets of copies of a Copier that kernels may carry out at a time.
// Others wait for nothing: the copy engine copies them.
const copierTables = 16

// Copier copies between slabs and pinned host memory, on a stream of its own: many small pieces by
// one launch of the gather kernel, others by the copy engine. Its methods may be called from any
// goroutine.
type Copier struct {
	stream *Stream
	// gather is nil if the device does not run the kernel.
	gather *Gather
	// tables are the tables of gather that no copies use.
	tables chan int

	mu sync.Mutex
	// spares are events that no copies use. Guarded by mu.
	spares []*Event
}

// Copying is a set of copies that has been submitted.
type Copying struct {
	copier *Copier
	event  *Event
	// table is the table of the kernel that copies, -1 for the copy engine.
	table int
}

// NewCopier returns a Copier without copies.
func (d *Device) NewCopier(p Purpose) (*Copier, error) {
	c := &Copier{tables: make(chan int, copierTables)}
	var err error
	if c.stream, err = d.NewStream(p); err != nil {
		return nil, err
	}
	if c.gather, err = d.NewGather(copierTables, bounceRows); err != nil {
		c.gather = nil
		if health := d.Health(); health != nil {
			return nil, errors.Join(health, c.Close())
		}
	}
	for i := range copierTables {
		c.tables <- i
	}
	return c, nil
}

// Start submits copies, behind all that were submitted before. kernels says that kernels find the
// host memory, too (Lent.Kernels). After an error, none of these copies is under way.
func (c *Copier) Start(copies []Copy, kernels bool) (_ *Copying, err error) {
	x := &Copying{copier: c, table: -1}
	if x.event, err = c.event(); err != nil {
		return nil, err
	}
	if kernels && c.gather.pays(copies) {
		select {
		case x.table = <-c.tables:
		default:
		}
	}
	if x.table >= 0 {
		err = c.gather.copy(x.table, copies, c.stream, x.event)
	} else {
		err = c.stream.Copy(copies, x.event)
	}
	if err != nil {
		err = errors.Join(err, c.stream.Sync()) // some copies may be under way
		x.free()
		return nil, err
	}
	return x, nil
}

// Wait blocks, with its thread, until the copies are done. It must be called once.
func (x *Copying) Wait() error {
	err := x.event.Sync()
	x.free()
	return err
}

func (x *Copying) free() {
	c := x.copier
	if x.table >= 0 {
		c.tables <- x.table
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spares = append(c.spares, x.event)
}

// event returns an unused event or creates one.
func (c *Copier) event() (*Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.spares); n > 0 {
		e := c.spares[n-1]
		c.spares = c.spares[:n-1]
		return e, nil
	}
	return c.stream.device.NewEvent()
}

// Close frees what the copier has.
// REQUIRES: no copies are under way.
func (c *Copier) Close() error {
	var errs []error
	for _, e := range c.spares {
		errs = append(errs, e.Close())
	}
	if c.gather != nil {
		errs = append(errs, c.gather.Close())
	}
	return errors.Join(append(errs, c.stream.Close())...)
}

// findable returns the reason why kernels do not find pinned memory where the copy engine finds it.
func (d *Device) findable(pinned []byte) error {
	at, result := d.api.hostPointer(d.context, pinned)
	if err := d.check("cuMemHostGetDevicePointer", result); err != nil {
		return err
	}
	if at != address(pinned) {
		return fmt.Errorf("cuda: %s: kernels find host memory at other addresses than the copy engine", d.name)
	}
	return nil
}
