// Package stats is an Adapter: it describes for the API what a worker has in use, such as its
// memory and its routes to peers.
package stats

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/store"
)

// Peers are the other workers of the cluster.
type Peers interface {
	// Routes returns the routes to all peers if they have changed since the last call.
	Routes() []*millracev1.Route
	// Last returns at most limit of the last fetches, oldest first.
	Last(limit int) []*millracev1.MemoryFetch
}

// Executors are the processes of a worker.
type Executors interface {
	// KindOf returns the kind of executor that a process is, "" if it is none that runs tasks now.
	KindOf(pid int) string
	// Deaths returns how many processes died, and the reason of the last death.
	Deaths() (n uint64, last string)
}

// Config is fixed for the life of a worker.
type Config struct {
	Store *store.Store
	Peers Peers
	// Executors may be nil.
	Executors Executors
	// NativeTimes returns the times of native operations.
	NativeTimes func() *millracev1.NativeTimes
	// GPUHealth returns the state of the worker's GPU, nil if that is unknown. May be nil.
	GPUHealth func() *millracev1.GpuHealth
	// NetworkDevices returns what the network devices carry, nil if that is unknown. May be nil.
	NetworkDevices func() []*millracev1.NetworkDevice
	// Traffic returns the bytes received and sent since the start. May be nil.
	Traffic func() (in, out uint64)
	// RSS returns the resident memory of the process in bytes. Nil: that of this process.
	RSS func() uint64
}

// Stats describes one worker.
type Stats struct{ config Config }

// New returns the Stats of a worker.
func New(c Config) *Stats {
	if c.RSS == nil {
		c.RSS = RSS
	}
	return &Stats{c}
}

// Beat returns what the worker tells the scheduler about itself. It lists the routes only if they
// have changed since the last call. REQUIRES: the caller owns the worker.
func (s *Stats) Beat() *workerv1.WorkerStats {
	books, _, small := s.config.Store.Stats()
	r := &workerv1.WorkerStats{MemoryUsedBytes: books.HeldBytes + books.ReservedBytes + small, RssBytes: s.config.RSS()}
	tiers := s.config.Store.Tiers()
	var below uint64 // what the tiers below have room for
	r.MemoryPressure = len(tiers) > 1 && books.Pressed()
	for i := range tiers {
		r.Tiers = append(r.Tiers, tierOf(&tiers[i]))
	}
	for _, t := range tiers[1:] {
		r.SpilledBytes += t.HeldBytes
		r.SpillWrittenBytes += t.OutBytes
		r.SpillReadBytes += t.InBytes
		if t.Failed != nil {
			r.SpillFailure = t.Failed.Error()
		} else {
			below += t.SizeBytes - min(t.UsedBytes, t.SizeBytes)
		}
	}
	r.MemoryEvictableBytes = tiers[0].CheapBytes + min(tiers[0].EvictableBytes-tiers[0].CheapBytes, below)
	r.Routes = s.config.Peers.Routes()
	if s.config.GPUHealth != nil {
		r.GpuHealth = s.config.GPUHealth()
	}
	if s.config.NetworkDevices != nil {
		r.NetworkDevices = s.config.NetworkDevices()
	}
	if s.config.Traffic != nil {
		r.ReceivedBytes, r.SentBytes = s.config.Traffic()
	}
	if s.config.Executors != nil {
		r.ExecutorDeaths, r.LastExecutorDeath = s.config.Executors.Deaths()
	}
	return r
}

func tierOf(t *ledger.TierState) *millracev1.MemoryTier {
	tier := &millracev1.MemoryTier{
		Name: t.Name, SizeBytes: t.SizeBytes, UsedBytes: t.UsedBytes, ObjectBytes: t.HeldBytes, CleanBytes: t.CleanBytes,
		EvictableBytes: t.EvictableBytes, LeavingBytes: t.LeavingBytes, ComingBytes: t.ComingBytes, WrittenBytes: t.OutBytes, ReadBytes: t.InBytes,
		LargestFreeBytes: t.LargestFreeBytes,
	}
	if t.Failed != nil {
		tier.Failure = t.Failed.Error()
	}
	return tier
}

// Memory describes the contents of the worker's memory: at most limit of the largest holders, of
// the pins and of the last fetches, and the history of a task's result if task is not 0. It may be
// called from any goroutine.
func (s *Stats) Memory(limit int, task ids.TaskID) *millracev1.DescribeMemoryResponse {
	snapshot := s.config.Store.Snapshot(limit)
	_, objects, small := s.config.Store.Stats()
	r := &millracev1.DescribeMemoryResponse{
		Largest: s.holdings(snapshot.Largest, len(snapshot.Tiers)), Pinned: s.holdings(snapshot.Pinned, len(snapshot.Tiers)),
		SmallObjectCount: uint64(objects), SmallObjectBytes: small, RssBytes: s.config.RSS(), Fetches: s.config.Peers.Last(limit), NativeTimes: s.config.NativeTimes(),
	}
	if task != 0 {
		r.History = s.config.Store.History(task)
	}
	for i := range snapshot.Tiers {
		r.Tiers = append(r.Tiers, tierOf(&snapshot.Tiers[i]))
	}
	for _, x := range snapshot.Reservations {
		r.Reservations = append(r.Reservations, &millracev1.MemoryReservation{
			ReservationId: uint64(x.ID), Owner: owner(x.Holder), RequestedBytes: x.Bytes, LoadBytes: x.LoadBytes, Granted: x.Granted, Urgent: x.Urgent,
			Age: durationpb.New(max(time.Since(x.Since), 0)),
		})
	}
	return r
}

func (s *Stats) holdings(list []ledger.Holding, tiers int) (out []*millracev1.MemoryHolding) {
	for i := range list {
		h := &list[i]
		x := &millracev1.MemoryHolding{
			TaskId: uint64(h.Object.Task), Generation: uint32(h.Object.Generation), ReservationId: uint64(h.Reservation),
			SharedBytes: h.SharedBytes, LeaseCount: uint32(h.Leases), Copy: h.Copied, TierBytes: h.TierBytes[:tiers],
		}
		if h.Reservation != 0 {
			x.Owner, x.TierBytes[0] = owner(h.Holder), h.Bytes
		} else {
			x.State = objectState(h.State)
			switch h.NextUse {
			case ledger.NeverUsed:
				x.Use = &millracev1.MemoryHolding_NextUse{NextUse: millracev1.NextUse_NEXT_USE_NEVER}
			case ledger.UnknownUse:
				x.Use = &millracev1.MemoryHolding_NextUse{NextUse: millracev1.NextUse_NEXT_USE_UNKNOWN}
			default:
				x.Use = &millracev1.MemoryHolding_NextRank{NextRank: h.NextUse}
			}
		}
		for _, p := range h.Pins {
			x.Pins = append(x.Pins, s.pinName(p))
		}
		out = append(out, x)
	}
	return out
}

func objectState(x ledger.State) millracev1.ObjectState {
	switch x {
	case ledger.Building:
		return millracev1.ObjectState_OBJECT_STATE_BUILDING
	case ledger.Sealed:
		return millracev1.ObjectState_OBJECT_STATE_SEALED
	case ledger.Dropped:
		return millracev1.ObjectState_OBJECT_STATE_DROPPED
	}
	return millracev1.ObjectState_OBJECT_STATE_UNSPECIFIED
}

// owner converts the holder of a reservation.
func owner(h ledger.Holder) *millracev1.MemoryOwner {
	switch h.Kind {
	case ledger.HolderTask:
		return &millracev1.MemoryOwner{Owner: &millracev1.MemoryOwner_TaskId{TaskId: h.ID}}
	case ledger.HolderWorker:
		return &millracev1.MemoryOwner{Owner: &millracev1.MemoryOwner_WorkerId{WorkerId: uint32(h.ID)}}
	case ledger.HolderClient:
		return &millracev1.MemoryOwner{Owner: &millracev1.MemoryOwner_WrittenTaskId{WrittenTaskId: h.ID}}
	case ledger.HolderExecutor:
		return &millracev1.MemoryOwner{Owner: &millracev1.MemoryOwner_ExecutorSlot{ExecutorSlot: uint32(h.ID)}}
	}
	return &millracev1.MemoryOwner{}
}

// pinName describes the holder of a pin, as in "input t42/a1" or "executor python, pid 4711".
func (s *Stats) pinName(p ledger.Pin) string {
	if p.Reason != ledger.PinExecutor || s.config.Executors == nil {
		return p.String()
	}
	kind := s.config.Executors.KindOf(int(p.Holder.ID))
	if kind == "" {
		kind = "that is ending"
	}
	return fmt.Sprintf("executor %s, pid %d", kind, p.Holder.ID)
}

// RSS is the resident set size in bytes without shared memory (the slab is shared memory); 0 if the
// system does not report it.
func RSS() (n uint64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(name) != "RssAnon" && string(name) != "RssFile" {
			continue
		}
		kib, err := strconv.ParseUint(string(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB"))), 10, 64)
		if err == nil {
			n += kib << 10
		}
	}
	return n
}
