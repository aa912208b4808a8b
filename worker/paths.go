package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/route"
	"github.com/millrace/millrace/transfer/ucx"
)

// keepDead is how long the memory of a dead peer stays mapped unless the scheduler says that it is
// not needed any more. It is long enough for the scheduler to detect the death by itself (2 s) if
// no supervisor reports it.
const keepDead = 2500 * time.Millisecond

// openPaths builds the route selector over all paths to the objects of other workers, best path
// first.
func (p *parts) openPaths(context.Context) (func() error, error) {
	space := p.memory.device.Space()
	p.streams = grpcpath.New(grpcpath.Config{Worker: p.self, Token: p.Token, StallTimeout: p.StallTimeout, Received: p.receive})
	// A Staged space is that of a slab on a GPU.
	_, far := space.(memory.Staged)
	p.oneSided = &oneSided{
		config: p.ucxConfig(space, p.objects.Source()),
		path:   ucx.PathConfig{Connect: p.streams.Connect, Worker: p.self, StallTimeout: p.StallTimeout, Received: p.receive},
		forced: p.Protocol == ProtocolUCX, chosen: p.chosen(), far: far, reach: hostReached, log: p.Log,
	}
	if p.oneSided.forced {
		if _, _, err := p.oneSided.open(); err != nil {
			return nil, errors.Join(fmt.Errorf("worker: %w", NoUCX(err)), p.streams.Close())
		}
	}
	mapped := borrow.New(borrow.Config{
		Worker: p.self, Token: p.Token, StallTimeout: p.StallTimeout, Received: p.receive, KeepDead: keepDead, Unmapped: p.unmapped,
	})
	all, err := p.gpuCandidates(space)
	if err != nil {
		return nil, errors.Join(err, mapped.Close(), p.oneSided.Close(), p.streams.Close())
	}
	all = append(all, route.Candidate{Path: mapped}, route.Candidate{Path: p.oneSided, Eligible: p.oneSided.eligible, Unreachable: unreachable}, route.Candidate{Path: p.streams})
	var candidates []route.Candidate
	var unused []transfer.Path
	for _, r := range all {
		if p.takes(r.Path.Name(), far) {
			candidates = append(candidates, r)
		} else {
			// The unused paths still serve peers or carry the wire-up of UCX connections.
			// They are closed together with the others.
			unused = append(unused, r.Path)
		}
	}
	p.path = route.New(route.Config{Candidates: candidates, Unused: unused, Log: p.Log})
	return p.path.Close, nil
}

func (p *parts) self() ids.WorkerID                   { return p.late.worker.Self() }
func (p *parts) receive(n int)                        { p.received.Add(uint64(n)) }
func (p *parts) unmapped(at transfer.Peer, dead bool) { p.late.worker.Unmapped(at, dead) }

// computing reports whether tasks use the GPU now. A device in host memory runs no kernels.
func (p *parts) computing() bool {
	gpu, ok := p.memory.device.(interface{ Computing() bool })
	return ok && gpu.Computing() || p.late.pools.Working()
}

// takes reports whether objects are read by a path, best path first: on a GPU by ipc, pinned, ucx
// and grpc, in host memory by borrow, ucx and grpc. --protocol chooses one of them, together with
// the paths that it needs for objects outside of the slab. far says that our slab is on a GPU.
func (c Config) takes(path string, far bool) bool {
	switch {
	case path == ProtocolBorrow && far:
		return false // only the GPU's copies write to its memory
	case c.Protocol == ProtocolAuto || path == c.Protocol:
		return true
	case path == pathPinned:
		return c.Protocol == ProtocolIPC
	case path == ProtocolGRPC:
		// Spilled objects, and on a GPU all that no other path can read.
		return far || c.Protocol == ProtocolUCX
	}
	return false
}

// pathPinned is the name of the path to the pinned memory of workers on GPUs of this host. No
// protocol selects it alone.
const pathPinned = "pinned"

// NoUCX wraps the error of a process that was configured to use UCX and cannot.
func NoUCX(err error) error {
	return fmt.Errorf("--protocol ucx: %w; `millrace doctor` tells what there is, and --protocol auto does without", err)
}
