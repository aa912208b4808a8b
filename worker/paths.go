package worker

import (
	"errors"
	"fmt"
	"slices"
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
	oneSided := &oneSided{
		config: ucx.Config{
			Library: c.UCXLibrary, TLS: c.UCXTLS, NoTCP: c.Protocol != ProtocolUCX, NetDevices: c.netDevices(), Space: space, Source: source, SourceIsQuick: true, Log: c.Log,
		},
		path:   ucx.PathConfig{Connect: streams.Connect, Worker: self, StallTimeout: c.StallTimeout, Received: received},
		forced: c.Protocol == ProtocolUCX, chosen: c.chosen(), workers: workerTokens(c), log: c.Log,
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
	first := len(all)
	all = append(all, route.Candidate{Path: mapped}, route.Candidate{Path: oneSided, Eligible: oneSided.eligible, Unreachable: unreachable}, route.Candidate{Path: streams})
	// One-sided reads reach only the slab. Spilled objects come in a gRPC stream,
	// even with --protocol ucx.
	_, far := space.(memory.Staged)
	taken := func(r route.Candidate) bool {
		if far {
			// The slab is on a GPU. The GPU copies the objects of peers on this host;
			// UCX is used if the operator asks for it; all else comes in a gRPC stream.
			direct := slices.ContainsFunc(all[:first], func(gpu route.Candidate) bool { return gpu.Path == r.Path }) && (c.Protocol == ProtocolAuto || c.Protocol == ProtocolIPC)
			return direct || oneSided.forced && r.Path == transfer.Path(oneSided) || r.Path == transfer.Path(streams)
		}
		return c.Protocol == ProtocolAuto || r.Path.Name() == c.Protocol || c.Protocol == ProtocolUCX && r.Path == transfer.Path(streams)
	}
	var candidates, unused []route.Candidate
	for _, r := range all {
		if taken(r) {
			candidates = append(candidates, r)
		} else {
			// The unused paths still serve peers or carry the wire-up of UCX connections.
			// They are closed together with the others.
			unused = append(unused, r)
		}
	}
	return route.New(route.Config{Candidates: candidates, Unused: paths(unused), Log: c.Log}), oneSided, streams, nil
}

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
