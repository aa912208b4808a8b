package sim

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/memory/ledger"
)

// The goroutines of a run take turns: only one of them runs at a time, and the agenda says which. A
// goroutine that the worker starts waits for its turn first, and a sleep ends with a turn. Some
// goroutines begin, or are woken, while another one runs: when the step is over, they get their
// turns in an order that only depends on who they are (arrive).

// errEnded is the end of everything in a process that has ended.
var errEnded = errors.New("the process has ended")

// turnKind says of a goroutine that arrives by itself what it does.
type turnKind uint8

const (
	turnSave turnKind = iota
	turnLoad
	turnDiscard
	turnReserved
	turnWritten
)

// arrival is a goroutine that waits for its first turn. number tells it from others of its kind.
type arrival struct {
	process *process
	kind    turnKind
	number  uint64
	turn    chan struct{}
}

// background are the goroutines of a run that have arrived in the current step.
type background struct {
	mu       sync.Mutex
	arrivals []arrival // guarded by mu
	// foreign: it is not the turn of the goroutine of the agenda. failure is what a goroutine has
	// found wrong, nil if nothing.
	foreign bool
	failure any
}

// arrive waits for the turn of a goroutine that began or was woken while another one ran. It
// returns false if the process has ended.
func (p *process) arrive(kind turnKind, number uint64) bool {
	a := arrival{p, kind, number, make(chan struct{})}
	b := &p.w.background
	b.mu.Lock()
	b.arrivals = append(b.arrivals, a)
	b.mu.Unlock()
	<-a.turn
	return !p.dead
}

// sleep lets other goroutines have their turns for a time. It returns false if the process has
// ended. A stopped process sleeps on. REQUIRES: it is the goroutine's turn.
func (p *process) sleep(d time.Duration) bool {
	turn := make(chan struct{})
	p.w.wake(d, func() { p.give(turn) })
	<-turn
	return !p.dead
}

// give gives a goroutine of the process its turn, and returns when all goroutines wait again.
func (p *process) give(turn chan struct{}) {
	if p.stopped && !p.dead {
		p.turns = append(p.turns, turn)
		return
	}
	p.w.background.run(func() { close(turn) })
}

// giveAll gives the turns that came while the process was suspended.
func (p *process) giveAll() {
	turns := p.turns
	p.turns = nil
	for _, turn := range turns {
		p.give(turn)
	}
}

// run lets a goroutine run, and returns when all goroutines wait.
func (b *background) run(start func()) {
	b.foreign = true
	start()
	synctest.Wait()
	b.foreign = false
	if b.failure != nil {
		panic(b.failure)
	}
}

// begin begins a goroutine of the process a little later. REQUIRES: it is the goroutine's turn.
func (p *process) begin(do func()) {
	p.w.after(p.w.between(0, 20*time.Microsecond), func() {
		p.run(func() { p.w.background.run(func() { go p.w.background.guarded(do) }) })
	})
}

// guarded keeps the panic of a goroutine, which ends the run.
func (b *background) guarded(do func()) {
	defer func() {
		if r := recover(); r != nil && b.failure == nil {
			b.failure = fmt.Sprintf("%v\n%s", r, debug.Stack())
		}
	}()
	do()
}

// waited is what a goroutine calls that has waited for memory.
func (p *process) waited(r ledger.ReservationID) { p.arrive(turnReserved, uint64(r)) }

// order gives the goroutines that have arrived their turns, at once, one after the other. It says
// whether there were any.
func (w *world) order() bool {
	b := &w.background
	b.mu.Lock()
	list := b.arrivals
	b.arrivals = nil
	b.mu.Unlock()
	slices.SortFunc(list, func(x, y arrival) int {
		return cmp.Or(cmp.Compare(x.process.number, y.process.number), cmp.Compare(x.kind, y.kind), cmp.Compare(x.number, y.number))
	})
	for _, a := range list {
		a.process.give(a.turn)
	}
	return len(list) > 0
}
