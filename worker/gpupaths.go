package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/pinned"
	"github.com/millrace/millrace/transfer/route"
)

// gpuCandidates returns the candidate paths that only a slab on a GPU has; none for other slabs.
func (p *parts) gpuCandidates(space memory.Space) ([]route.Candidate, error) {
	slab, ok := space.(*cuda.Slab)
	if !ok {
		return nil, nil
	}
	path, err := ipc.New(ipc.Config{
		Device: slab.Device(), Slab: slab, Worker: p.self, Token: p.Token, StallTimeout: p.StallTimeout, Received: p.receive, Log: p.Log,
		Computing: p.computing,
		KeepDead:  keepDead, PeerUnmapped: p.unmapped, Suspect: func(gpu cuda.UUID) error { return p.suspects.why(gpu, time.Now()) },
	})
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	below, err := pinned.New(pinned.Config{
		Device: slab.Device(), Slab: slab, Worker: p.self, Token: p.Token, StallTimeout: p.StallTimeout, Received: p.receive, Log: p.Log,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("worker: %w", err), path.Close())
	}
	return []route.Candidate{{Path: path}, {Path: below}}, nil
}
