package worker

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/transfer/route"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/loop"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/web"
)

// hangTime is the silence after which a worker's loop, which beats every second, counts as hanging.
const hangTime = 10 * time.Second

// pulse notes the beats of a worker's loop, and passes them on.
type pulse struct {
	began time.Time
	// last is the time from began to the last beat.
	last atomic.Int64
	pass func() // may be nil
}

func newPulse(pass func()) *pulse { return &pulse{began: time.Now(), pass: pass} }

func (p *pulse) beat() {
	p.last.Store(int64(time.Since(p.began)))
	if p.pass != nil {
		p.pass()
	}
}

// hangs returns an error if the last beat is too long ago.
func (p *pulse) hangs() error {
	if silence := time.Since(p.began) - time.Duration(p.last.Load()); silence > hangTime {
		return fmt.Errorf("the worker hangs: its loop has not moved for %v", silence.Round(time.Second))
	}
	return nil
}

// watched are the parts of a worker that its HTTP port shows.
type watched struct {
	loop    *loop.Worker
	objects *store.Store
	path    *route.Selector
	pools   *executor.Pools
	traffic func() (in, out uint64)
	pulse   *pulse
}

// serveHTTP opens the HTTP port; it returns nil if the worker has none.
func (c Config) serveHTTP(w watched) (*web.Port, error) {
	if c.HTTPAddress == "" {
		return nil, nil
	}
	port, err := web.Open(web.Config{
		Address: c.HTTPAddress, Guarded: len(c.tokens()) > 0, Worker: c.Name, Version: c.Version, Figures: w.figures, Hangs: w.pulse.hangs,
		Unready: func() error {
			select {
			case <-c.Drain:
				return errors.New("the worker leaves")
			default:
			}
			if !w.loop.Connected() {
				return errors.New("the worker has no session with the scheduler")
			}
			return w.pulse.hangs()
		},
	})
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	c.Log.Info("metrics are served", "http", port.Address())
	return port, nil
}

func (w watched) figures() web.Figures {
	f := web.Figures{Tiers: w.objects.Tiers()}
	f.Slab, _, _ = w.objects.Stats()
	for _, p := range w.path.Carried() {
		f.Paths = append(f.Paths, web.Path{Name: p.Path, Succeeded: p.Succeeded, Failed: p.Failed, Bytes: p.Bytes})
	}
	_, f.SentBytes = w.traffic()
	for _, p := range w.pools.Processes() {
		f.Executors = append(f.Executors, web.Executor{Kind: p.Kind, Working: p.Working, Idle: p.Idle, Spare: p.Spare})
	}
	f.ExecutorDeaths, _ = w.pools.Deaths()
	return f
}
