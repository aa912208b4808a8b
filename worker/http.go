package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

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

// openHTTP opens the HTTP port, if the worker has one.
func (p *parts) openHTTP(context.Context) (func() error, error) {
	if p.HTTPAddress == "" {
		return none, nil
	}
	port, err := web.Open(web.Config{
		Address: p.HTTPAddress, Guarded: len(p.tokens()) > 0, Worker: p.Name, Version: p.Version, Figures: p.figures, Hangs: p.pulse.hangs,
		Unready: func() error {
			select {
			case <-p.Drain:
				return errors.New("the worker leaves")
			default:
			}
			if !p.late.worker.Connected() {
				return errors.New("the worker has no session with the scheduler")
			}
			return p.pulse.hangs()
		},
	})
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	p.Log.Info("metrics are served", "http", port.Address())
	return port.Close, nil
}

func (p *parts) figures() web.Figures {
	f := web.Figures{Tiers: p.objects.Tiers()}
	f.Slab, _, _ = p.objects.Stats()
	for _, x := range p.path.Carried() {
		f.Paths = append(f.Paths, web.Path{Name: x.Path, Succeeded: x.Succeeded, Failed: x.Failed, Bytes: x.Bytes})
	}
	_, f.SentBytes = p.traffic()
	for _, x := range p.late.pools.Processes() {
		f.Executors = append(f.Executors, web.Executor{Kind: x.Kind, Working: x.Working, Idle: x.Idle, Spare: x.Spare})
	}
	f.ExecutorDeaths, _ = p.late.pools.Deaths()
	if h := p.health.current(); h != nil && h.NvLinkReceivedBytes != nil {
		f.NVLink = &web.Link{Received: float64(h.GetNvLinkReceivedBytes()), Sent: float64(h.GetNvLinkSentBytes())}
	}
	if h := p.health.current(); h != nil && h.PcieReceivedBytesPerSecond != nil {
		f.PCIe = &web.Link{Received: h.GetPcieReceivedBytesPerSecond(), Sent: h.GetPcieSentBytesPerSecond()}
	}
	for _, d := range p.network.current() {
		if d.ReceivedBytes != nil && d.SentBytes != nil {
			f.NetworkDevices = append(f.NetworkDevices, web.NetworkDevice{Name: d.GetName(), ReceivedBytes: d.GetReceivedBytes(), SentBytes: d.GetSentBytes()})
		}
	}
	return f
}
