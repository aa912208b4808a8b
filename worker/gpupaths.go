package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/pinned"
	"github.com/millrace/millrace/transfer/route"
)

// gpuCandidates returns the candidate paths that only a slab on a GPU has; none for other slabs.
func (c Config) gpuCandidates(space memory.Space, self func() ids.WorkerID, received func(int), unmapped func(transfer.Peer, bool), computing func() bool) ([]route.Candidate, error) {
	slab, ok := space.(*cuda.Slab)
	if !ok {
		return nil, nil
	}
	path, err := ipc.New(ipc.Config{
		Device: slab.Device(), Slab: slab, Worker: self, Token: c.Token, StallTimeout: c.StallTimeout, Received: received, Log: c.Log,
		Computing: computing,
		KeepDead:  keepDead, PeerUnmapped: unmapped, Suspect: func(gpu cuda.UUID) error { return c.suspects.why(gpu, time.Now()) },
	})
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	below, err := pinned.New(pinned.Config{
		Device: slab.Device(), Slab: slab, Worker: self, Token: c.Token, StallTimeout: c.StallTimeout, Received: received, Log: c.Log,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("worker: %w", err), path.Close())
	}
	return []route.Candidate{{Path: path}, {Path: below}}, nil
}
