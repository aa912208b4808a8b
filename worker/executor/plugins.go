package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Plugin prepares the processes of one kind.
type Plugin struct {
	Name string
	// Version differs for each registration of the name.
	Version uint64
	Kind    string
	// Setup is called in each process before its first run, Teardown when the plugin is removed.
	// Nil: nothing is called.
	Setup, Teardown *Call
}

// PluginFrom returns a plugin of the API.
func PluginFrom(p *millracev1.Plugin) (Plugin, error) {
	out := Plugin{Name: p.GetName(), Version: p.GetVersion()}
	for _, x := range []struct {
		from *millracev1.FunctionCall
		to   **Call
	}{{p.GetTeardown(), &out.Teardown}, {p.GetSetup(), &out.Setup}} {
		if x.from == nil {
			continue
		}
		kind, c, err := callFrom(x.from.GetName(), x.from.GetFunction(), x.from.GetArguments())
		if err != nil {
			return out, fmt.Errorf("plugin %q: %w", p.GetName(), err)
		}
		out.Kind, *x.to = kind, c
	}
	return out, nil
}

// pluginList is the list of plugins that processes must have.
type pluginList struct {
	// applying is held while a list is applied to the processes that can take runs.
	applying sync.Mutex

	mu sync.Mutex
	// current is replaced as a whole. known is closed when it was set for the first time. Guarded
	// by mu, which is also held while a process becomes one that can take runs: either that process
	// has the current list, or it is among those to which the next one is applied.
	current []Plugin
	known   chan struct{}
}

// pluginError says that a plugin could not be set up in a process.
type pluginError struct {
	plugin string
	result Returned
}

func (e *pluginError) Error() string {
	return fmt.Sprintf("plugin %q failed: %s; unregister it, or mend what it needs", e.plugin, e.result.Error.GetMessage())
}

// SetPlugins makes a list the plugins of all processes, and returns the failed calls by version. In
// processes that can take runs, it calls Teardown of the plugins that are not in the list any more,
// and Setup of those that are new, in the order of the list. A process that starts later gets them
// before its first run. If there is no process of a plugin's kind, one is started.
func (p *Pools) SetPlugins(ctx context.Context, list []Plugin) map[uint64][]Returned {
	p.plugins.applying.Lock()
	defer p.plugins.applying.Unlock()
	p.plugins.mu.Lock()
	p.plugins.current = list
	select {
	case <-p.plugins.known:
	default:
		close(p.plugins.known)
	}
	var processes []*process
	for _, kind := range p.Kinds() {
		processes = append(processes, p.ready(kind)...)
	}
	p.plugins.mu.Unlock()

	var calling sync.WaitGroup
	results := make([]map[uint64]Returned, len(processes))
	for i, to := range processes {
		calling.Go(func() { results[i] = to.apply(ctx, list) })
	}
	calling.Wait()
	failed := make(map[uint64][]Returned)
	for _, r := range results {
		for version, x := range r { // order-free: each version has a list of its own
			failed[version] = append(failed[version], x)
		}
	}
	for _, x := range list {
		if len(p.slots[x.Kind]) == 0 || slices.ContainsFunc(processes, func(r *process) bool { return r.kind == x.Kind }) {
			continue
		}
		var fault *pluginError
		if _, err := p.slots[x.Kind][0].await(ctx); errors.As(err, &fault) {
			if i := slices.IndexFunc(list, func(y Plugin) bool { return y.Name == fault.plugin }); i >= 0 {
				failed[list[i].Version] = []Returned{fault.result}
			}
		}
	}
	return failed
}

// apply gives the process exactly these plugins, and returns the calls that failed, by version.
// REQUIRES: no other apply of this process is in progress.
func (p *process) apply(ctx context.Context, list []Plugin) map[uint64]Returned {
	failed := make(map[uint64]Returned)
	call := func(x Plugin, c *Call) bool {
		if c == nil {
			return true
		}
		result := Returned{Slot: p.slot.index, PID: p.pid()}
		answer, refused := p.call(c)
		if refused != nil {
			result.Error = refused
		} else {
			select {
			case r := <-answer:
				result.Header, result.Frames, result.Error = r.GetHeader(), r.GetFrames(), r.GetError()
			case <-p.exited: // its calls are answered later, by this goroutine
				result.Error = p.deathError("called the function", p.cause.String())
			case <-ctx.Done():
				return false // the worker ends
			}
		}
		if result.Error != nil {
			result.Error.Worker = p.pools.config.Worker
			failed[x.Version] = result
		}
		return result.Error == nil
	}
	p.plugged = slices.DeleteFunc(p.plugged, func(x Plugin) bool {
		if slices.ContainsFunc(list, func(y Plugin) bool { return y.Version == x.Version }) {
			return false
		}
		call(x, x.Teardown)
		return true
	})
	for _, x := range list {
		if x.Kind != p.kind || slices.ContainsFunc(p.plugged, func(y Plugin) bool { return y.Version == x.Version }) {
			continue
		}
		if call(x, x.Setup) {
			p.plugged = append(p.plugged, x)
		}
	}
	return failed
}

// plugIn gives a process that is about to take runs the plugins, and calls ready when it has the
// current ones. It returns the first plugin that could not be set up.
func (p *process) plugIn(ready func()) error {
	list := &p.pools.plugins
	if p.pools.config.Plugins {
		select {
		case <-list.known:
		case <-p.exited:
		case <-p.pools.closing:
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-p.pools.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		list.mu.Lock()
		wanted := list.current
		list.mu.Unlock()
		for version, result := range p.apply(ctx, wanted) { // order-free: one failure is enough
			i := slices.IndexFunc(wanted, func(x Plugin) bool { return x.Version == version })
			if i >= 0 { // a failed teardown of an earlier plugin is no reason
				return &pluginError{plugin: wanted[i].Name, result: result}
			}
		}
		list.mu.Lock()
		if slices.EqualFunc(list.current, wanted, func(a, b Plugin) bool { return a.Version == b.Version }) {
			ready()
			list.mu.Unlock()
			return nil
		}
		list.mu.Unlock()
	}
}
