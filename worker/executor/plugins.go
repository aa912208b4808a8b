package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
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
	// current is replaced as a whole. known is closed when it was set for the first time, changed
	// when it is replaced. Guarded by mu, which is also held while a process becomes one that can
	// take runs: either that process has the current list, or it is among those to which the next
	// one is applied.
	current        []Plugin
	known, changed chan struct{}
}

// wants says whether the current list has a plugin, and returns the channel that is closed when the
// list is replaced.
func (l *pluginList) wants(version uint64) (wanted bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.current, func(x Plugin) bool { return x.Version == version }), l.changed
}

// pluginError says that a plugin could not be set up in a process.
type pluginError struct {
	plugin string
	result Returned
}

func (e *pluginError) Error() string {
	return fmt.Sprintf("plugin %q failed: %s; unregister it, or mend what it needs", e.plugin, e.result.Error.GetMessage())
}

// WantPlugins makes a list the plugins that processes must have; ApplyPlugins gives it to those
// that run. A setup in progress whose plugin is not in the list is not waited for any more.
func (p *Pools) WantPlugins(list []Plugin) {
	p.plugins.mu.Lock()
	defer p.plugins.mu.Unlock()
	p.plugins.current = list
	close(p.plugins.changed)
	p.plugins.changed = make(chan struct{})
	select {
	case <-p.plugins.known:
	default:
		close(p.plugins.known)
	}
}

// ApplyPlugins gives all processes the plugins of the last WantPlugins, and returns the failed
// calls by version. In processes that can take runs, it calls Teardown of the plugins that are not
// in the list any more, and Setup of those that are new, in the order of the list. A process that
// starts later gets them before its first run. If there is no process of a plugin's kind, one is
// started.
//
// A call that takes longer than Config.PluginTimeout has failed. A process in which a call does not
// return is replaced, as by Restart: nothing else ends the call.
func (p *Pools) ApplyPlugins(ctx context.Context) map[uint64][]Returned {
	p.plugins.applying.Lock()
	defer p.plugins.applying.Unlock()
	p.plugins.mu.Lock()
	list := p.plugins.current
	var processes []*process
	for _, kind := range p.Kinds() {
		processes = append(processes, p.ready(kind)...)
	}
	p.plugins.mu.Unlock()

	var calling sync.WaitGroup
	results := make([]map[uint64]Returned, len(processes))
	for i, to := range processes {
		calling.Go(func() {
			var hangs bool
			if results[i], hangs = to.apply(ctx, list); hangs {
				to.renew()
			}
		})
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
// hangs: a call has not returned, and those behind it were not made.
// REQUIRES: no other apply of this process is in progress.
func (p *process) apply(ctx context.Context, list []Plugin) (failed map[uint64]Returned, hangs bool) {
	failed = make(map[uint64]Returned)
	call := func(x Plugin, c *Call) (ok, returned bool) {
		if c == nil {
			return true, true
		}
		result := Returned{Slot: p.slot.index, PID: p.pid()}
		answer, refused := p.call(c)
		if returned = true; refused != nil {
			result.Error = refused
		} else if returned = p.answered(ctx, x, c, answer, &result); !returned && ctx.Err() != nil {
			return false, true // the worker ends
		}
		if result.Error != nil {
			result.Error.Worker = p.pools.config.Worker
			failed[x.Version] = result
		}
		return result.Error == nil, returned
	}
	p.plugged = slices.DeleteFunc(p.plugged, func(x Plugin) bool {
		if hangs || slices.ContainsFunc(list, func(y Plugin) bool { return y.Version == x.Version }) {
			return false
		}
		_, returned := call(x, x.Teardown) // a failure is in failed
		hangs = !returned
		return true
	})
	if hangs {
		return failed, true
	}
	for _, x := range list {
		if x.Kind != p.kind || slices.ContainsFunc(p.plugged, func(y Plugin) bool { return y.Version == x.Version }) {
			continue
		}
		ok, returned := call(x, x.Setup)
		if !returned {
			return failed, true
		}
		if ok {
			p.plugged = append(p.plugged, x)
		}
	}
	return failed, false
}

// answered waits for the answer to a call of a plugin. It returns false if there is none, because
// the call took too long, or is a setup and its plugin is not wanted any more, or the worker ends.
func (p *process) answered(ctx context.Context, x Plugin, c *Call, answer <-chan *executorv1.ExecutorReturn, result *Returned) bool {
	limit := time.NewTimer(p.pools.config.PluginTimeout)
	defer limit.Stop()
	for {
		wanted, changed := p.pools.plugins.wants(x.Version)
		if c == x.Setup && !wanted {
			result.Error = &millracev1.TaskError{Reason: "CANCELLED", Message: fmt.Sprintf(
				"plugin %q was unregistered while its setup ran in the process (%s, pid %d), which is replaced", x.Name, p.kind, p.pid())}
			return false
		}
		select {
		case r := <-answer:
			result.Header, result.Frames, result.Error = r.GetHeader(), r.GetFrames(), r.GetError()
			return true
		case <-p.exited: // its calls are answered later, by this goroutine
			result.Error = p.deathError("called the function", p.cause.String())
			return true
		case <-limit.C:
			result.Error = &millracev1.TaskError{Reason: "TIMEOUT", Message: fmt.Sprintf(
				"a call of plugin %q did not return within %v in the process (%s, pid %d); let it start long work in a thread, or make the call shorter",
				x.Name, p.pools.config.PluginTimeout, p.kind, p.pid())}
			return false
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
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
		failed, hangs := p.apply(ctx, wanted)
		for version, result := range failed { // order-free: one failure is enough
			i := slices.IndexFunc(wanted, func(x Plugin) bool { return x.Version == version })
			if i < 0 && !hangs { // a failed teardown of an earlier plugin is no reason
				continue
			}
			here, _ := list.wants(version)
			p.renewed.Store(!here) // the next process begins without that plugin
			if i < 0 {
				return errors.New(result.Error.GetMessage())
			}
			return &pluginError{plugin: wanted[i].Name, result: result}
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
