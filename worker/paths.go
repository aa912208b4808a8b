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
	"github.com/millrace/millrace/transfer/ladder"
	"github.com/millrace/millrace/transfer/ucx"
)

// linger is how long the memory of a dead peer stays mapped unless the scheduler says
// that nothing is wanted from it: long enough for it to find that out by itself, if no
// supervisor tells it (2 s).
const linger = 2500 * time.Millisecond

// paths are the ways to the objects of other workers, best first. computing says whether tasks use the GPU now.
func (c Config) paths(space memory.Space, source transfer.Source, self func() ids.WorkerID, received func(int), unmapped func(transfer.Peer, bool), computing func() bool) (*ladder.Path, *oneSided, *grpcpath.Path, error) {
	streams := grpcpath.New(grpcpath.Config{Worker: self, Token: c.Token, StallTimeout: c.StallTimeout, Received: received})
	lanes := &oneSided{
		config: ucx.Config{
			Library: c.UCXLibrary, TLS: c.UCXTLS, NoTCP: c.Protocol != ProtocolUCX, NetDevices: c.netDevices(), Space: space, Source: source, SourceIsQuick: true, Log: c.Log,
		},
		path:   ucx.PathConfig{Connect: streams.ConnectLane, Worker: self, StallTimeout: c.StallTimeout, Received: received},
		forced: c.Protocol == ProtocolUCX, chosen: c.chosen(), workers: workerTokens(c), log: c.Log,
	}
	if lanes.forced {
		if _, _, err := lanes.open(); err != nil {
			return nil, nil, nil, errors.Join(fmt.Errorf("worker: %w", NoUCX(err)), streams.Close())
		}
	}
	mapped := borrow.New(borrow.Config{
		Worker: self, Token: c.Token, StallTimeout: c.StallTimeout, Received: received, Linger: linger, Unmapped: unmapped,
	})
	all, err := c.gpuRungs(space, self, received, unmapped, computing)
	if err != nil {
		return nil, nil, nil, errors.Join(err, mapped.Close(), lanes.Close(), streams.Close())
	}
	first := len(all)
	all = append(all, ladder.Rung{Path: mapped}, ladder.Rung{Path: lanes, Suits: lanes.suits, NoWay: leadsNowhere}, ladder.Rung{Path: streams})
	// One-sided reads see the slab only: what was spilled comes in a stream, also if they are asked for.
	_, far := space.(memory.Staged)
	taken := func(r ladder.Rung) bool {
		if far {
			// What peers on this host have is copied by the device, by UCX if that is asked for, or comes in a stream.
			direct := slices.ContainsFunc(all[:first], func(gpu ladder.Rung) bool { return gpu.Path == r.Path }) && (c.Protocol == ProtocolAuto || c.Protocol == ProtocolIPC)
			return direct || lanes.forced && r.Path == transfer.Path(lanes) || r.Path == transfer.Path(streams)
		}
		return c.Protocol == ProtocolAuto || r.Path.Name() == c.Protocol || c.Protocol == ProtocolUCX && r.Path == transfer.Path(streams)
	}
	var rungs, unused []ladder.Rung
	for _, r := range all {
		if taken(r) {
			rungs = append(rungs, r)
		} else {
			// The others serve, or carry the wire-up of lanes: they are closed with the rest.
			unused = append(unused, r)
		}
	}
	return ladder.New(ladder.Config{Rungs: rungs, Unused: paths(unused), Log: c.Log}), lanes, streams, nil
}

// NoUCX is the error of who was told to use UCX, and cannot.
func NoUCX(err error) error {
	return fmt.Errorf("--protocol ucx: %w; `millrace doctor` tells what there is, and --protocol auto does without", err)
}

func paths(rungs []ladder.Rung) (out []transfer.Path) {
	for _, r := range rungs {
		out = append(out, r.Path)
	}
	return out
}
