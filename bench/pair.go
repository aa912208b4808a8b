package bench

import (
	"context"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

// pair is a worker whose tasks make objects, and one whose tasks use them.
type pair struct {
	client         *millrace.Client
	source, reader string
}

// make creates objects of the given number of elements on the source, and waits for them.
func (p pair) make(ctx context.Context, objects, elements int, value float64) (made []*millrace.Future, err error) {
	for range objects {
		f, err := p.client.Submit(ctx, millrace.Native("array.full"), millrace.Args([]any{elements}, value), millrace.WithWorkers(p.source))
		if err != nil {
			return nil, err
		}
		made = append(made, f)
	}
	return made, millrace.WaitAll(ctx, made...)
}

// use runs a task with the given inputs on the reader and returns its duration.
func (p pair) use(ctx context.Context, inputs ...any) (time.Duration, error) {
	began := time.Now()
	f, err := p.client.Submit(ctx, noop, millrace.Args(inputs...), millrace.WithWorkers(p.reader))
	if err != nil {
		return 0, err
	}
	defer f.Release()
	err = f.Wait(ctx)
	return time.Since(began), err
}

// transfer times a task that needs objects of the source. It also returns the tasks that made the
// objects.
func (p pair) transfer(ctx context.Context, size, objects int, value float64) (took time.Duration, tasks []uint64, err error) {
	made, err := p.make(ctx, objects, (size+7)/8, value)
	if err != nil {
		return 0, nil, err
	}
	defer p.client.Release(made...)
	inputs := make([]any, len(made))
	for n, f := range made {
		inputs[n], tasks = f, append(tasks, f.TaskID())
	}
	took, err = p.use(ctx, inputs...)
	return took, tasks, err
}

// once times a task that needs objects of the source, and one that needs nothing. It also returns
// the tasks that made the objects.
func (p pair) once(ctx context.Context, size, objects, i int) (took, empty time.Duration, tasks []uint64, err error) {
	small, err := p.make(ctx, 1, 1, float64(i+1))
	if err != nil {
		return 0, 0, nil, err
	}
	defer p.client.Release(small...)
	if empty, err = p.use(ctx); err != nil {
		return 0, 0, nil, err
	}
	took, tasks, err = p.transfer(ctx, size, objects, float64(i))
	return took, empty, tasks, err
}
