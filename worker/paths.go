package worker

import (
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

// paths builds the route selector over all paths to the objects of other workers, best path first.
// computing reports whether tasks use the GPU now.
func (c Config) paths(space memory.Space, source transfer.Source, self func() ids.WorkerID, received func(int), unmapped func(transfer.Peer, bool), computing func() bool) (*route.Selector, *oneSided, *grpcpath.Path, error) {
	streams := grpcpath.New(grpcpath.Config{Worker: self, Token: c.Token, StallTimeout: c.StallTimeout, Received: received})
	// A Staged space is that of a slab on a GPU.
	_, far := space.(memory.Staged)
	oneSided := &oneSided{
		config: c.ucxConfig(space, source),
		path:   ucx.PathConfig{Connect: streams.Connect, Worker: self, StallTimeout: c.StallTimeout, Received: received},
		forced: c.Protocol == ProtocolUCX, chosen: c.chosen(), far: far, reach: hostReached, log: c.Log,
	}
	if oneSided.forced {
		if _, _, err := oneSided.open(); err != nil {
			return nil, nil, nil, errors.Join(fmt.Errorf("worker: %w", NoUCX(err)), streams.Close())
		}
	}
	mapped := borrow.New(borrow.Config{
		Worker: self, Token: c.Token, StallTimeout: c.StallTimeout, Received: received, KeepDead: keepDead, Unmapped: unmapped,
	})
	all, err := c.gpuCandidates(space, self, received, unmapped, computing)
	if err != nil {
		return nil, nil, nil, errors.Join(err, mapped.Close(), oneSided.Close(), streams.Close())
	}
	all = append(all, route.Candidate{Path: mapped}, route.Candidate{Path: oneSided, Eligible: oneSided.eligible, Unreachable: unreachable}, route.Candidate{Path: streams})
	var candidates, unused []route.Candidate
	for _, r := range all {
		if c.takes(r.Path.Name(), far) {
			candidates = append(candidates, r)
		} else {
			// The unused paths still serve peers or carry the wire-up of UCX connections.
			// They are closed together with the others.
			unused = append(unused, r)
		}
	}
	return route.New(route.Config{Candidates: candidates, Unused: paths(unused), Log: c.Log}), oneSided, streams, nil
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

func paths(candidates []route.Candidate) (out []transfer.Path) {
	for _, r := range candidates {
		out = append(out, r.Path)
	}
	return out
}
