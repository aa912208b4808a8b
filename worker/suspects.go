package worker

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/topology"
)

// suspectFor is how long this worker does not read the memory of another GPU after an error that
// the worker of that GPU may have survived. After a fatal error it never reads that memory again.
const suspectFor = 10 * time.Minute

// suspects are the GPUs of this host whose memory this worker must not read, according to NVML.
// Their data may be wrong, and a read over a broken NVLink destroys the reader's own CUDA context,
// and with it all objects that the reader holds. The methods may be called from any goroutine.
type suspects struct {
	some atomic.Bool
	mu   sync.Mutex
	list map[string]suspicion // by UUID, of GPUs and of MIG instances; guarded by mu
}

type suspicion struct {
	event topology.Event
	until time.Time // zero: permanent
}

// add records an event of another GPU.
func (s *suspects) add(e topology.Event, now time.Time) {
	if e.UUID == "" || !e.Poisons() {
		return
	}
	var until time.Time
	if v := e.Verdict(); v != topology.Fatal && v != topology.Drain {
		until = now.Add(suspectFor)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = make(map[string]suspicion)
	}
	for _, uuid := range append([]string{e.UUID}, e.Instances...) {
		if old, known := s.list[uuid]; !known || !old.until.IsZero() {
			s.list[uuid] = suspicion{e, until}
		}
	}
	s.some.Store(true)
}

// why returns the reason why the memory of a GPU must not be read, nil if it may be.
func (s *suspects) why(gpu cuda.UUID, now time.Time) error {
	if !s.some.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for uuid, x := range s.list {
		if gpu.Matches(uuid) && (x.until.IsZero() || now.Before(x.until)) {
			return fmt.Errorf("the memory of that GPU is not read since the driver reported an error there: %s", x.event)
		}
	}
	return nil
}
