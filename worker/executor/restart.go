package executor

import (
	"context"
	"fmt"
	"strings"
)

// Restart ends the processes of a kind, or of all kinds if it is empty, spare ones included, and
// returns their number when they are gone. Others start when they are needed. Runs that had begun
// begin again, and are not blamed. The error is the context's, or ErrNoKind.
func (p *Pools) Restart(ctx context.Context, kind string) (ended int, err error) {
	kinds := []string{kind}
	if kind == "" {
		kinds = p.Kinds()
	} else if len(p.slots[kind]) == 0 {
		return 0, fmt.Errorf("%w: %q; there are: %s", ErrNoKind, kind, strings.Join(p.Kinds(), ", "))
	}
	var ending []*process
	for _, kind := range kinds {
		// Spare processes have loaded modules. They end first, or they would take the places.
		for spare := p.takeSpare(kind); spare != nil; spare = p.takeSpare(kind) {
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				spare.kill()
				<-spare.exited
				spare.close()
				spare.page.Close()
				p.wantSpare(kind)
			}()
			if err := spare.await(ctx, gone); err != nil {
				return ended, err
			}
			ended++
		}
		for _, old := range p.ready(kind) {
			old.renew()
			ending = append(ending, old)
		}
	}
	for _, old := range ending {
		if err := old.await(ctx, old.settled); err != nil {
			return ended, err
		}
		ended++
	}
	return ended, nil
}

// renew ends a process whose place another one takes. Its runs begin again, and are not blamed.
func (p *process) renew() {
	p.renewed.Store(true)
	p.kill()
}

// await waits for the end of a process that was killed.
func (p *process) await(ctx context.Context, gone <-chan struct{}) error {
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("process %d (%s) was killed, and has not ended: %w", p.pid(), p.kind, context.Cause(ctx))
	}
}
