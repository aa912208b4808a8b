package stats

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/ledger"
)

// A description names objects and reservations by enums and numbers, so that programs can read it.
func TestHoldingsAreDescribedForPrograms(t *testing.T) {
	sizes := [ledger.MaxTiers]uint64{5, 6}
	object := ledger.ObjectID{Task: 3, Generation: 2}
	never := &millracev1.MemoryHolding_NextUse{NextUse: millracev1.NextUse_NEXT_USE_NEVER}
	unknown := &millracev1.MemoryHolding_NextUse{NextUse: millracev1.NextUse_NEXT_USE_UNKNOWN}
	for name, test := range map[string]struct {
		held ledger.Holding
		want *millracev1.MemoryHolding
	}{
		"an object in use": {
			ledger.Holding{Object: object, State: ledger.Sealed, TierBytes: sizes, SharedBytes: 4, NextUse: 8, Copied: true, Leases: 1, Pins: []ledger.Pin{
				{Reason: ledger.PinInput, Holder: ledger.Holder{Kind: ledger.HolderTask, ID: 9}, Attempt: 1}}},
			&millracev1.MemoryHolding{TaskId: 3, Generation: 2, State: millracev1.ObjectState_OBJECT_STATE_SEALED, TierBytes: sizes[:2], SharedBytes: 4,
				Use: &millracev1.MemoryHolding_NextRank{NextRank: 8}, Copy: true, LeaseCount: 1, Pins: []string{"input t9/a1"}},
		},
		"a first rank": {
			ledger.Holding{Object: object, State: ledger.Building, TierBytes: sizes},
			&millracev1.MemoryHolding{TaskId: 3, Generation: 2, State: millracev1.ObjectState_OBJECT_STATE_BUILDING, TierBytes: sizes[:2], Use: &millracev1.MemoryHolding_NextRank{}},
		},
		"no more use": {
			ledger.Holding{Object: object, State: ledger.Dropped, TierBytes: sizes, NextUse: ledger.NeverUsed},
			&millracev1.MemoryHolding{TaskId: 3, Generation: 2, State: millracev1.ObjectState_OBJECT_STATE_DROPPED, TierBytes: sizes[:2], Use: never},
		},
		"an unknown use": {
			ledger.Holding{Object: object, State: ledger.Sealed, TierBytes: sizes, NextUse: ledger.UnknownUse},
			&millracev1.MemoryHolding{TaskId: 3, Generation: 2, State: millracev1.ObjectState_OBJECT_STATE_SEALED, TierBytes: sizes[:2], Use: unknown},
		},
		"a reservation": {
			ledger.Holding{Reservation: 7, Holder: ledger.Holder{Kind: ledger.HolderExecutor, ID: 1}, Bytes: 11},
			&millracev1.MemoryHolding{ReservationId: 7, TierBytes: []uint64{11, 0}, Owner: &millracev1.MemoryOwner{Owner: &millracev1.MemoryOwner_ExecutorSlot{ExecutorSlot: 1}}},
		},
	} {
		if got := new(Stats).holdings([]ledger.Holding{test.held}, 2); len(got) != 1 || !proto.Equal(got[0], test.want) {
			t.Errorf("%s is %v, not %v", name, got, test.want)
		}
	}
	for holder, want := range map[ledger.Holder]*millracev1.MemoryOwner{
		{Kind: ledger.HolderTask, ID: 4}:   {Owner: &millracev1.MemoryOwner_TaskId{TaskId: 4}},
		{Kind: ledger.HolderWorker, ID: 4}: {Owner: &millracev1.MemoryOwner_WorkerId{WorkerId: 4}},
		{Kind: ledger.HolderClient, ID: 4}: {Owner: &millracev1.MemoryOwner_WrittenTaskId{WrittenTaskId: 4}},
		{}:                                 {},
	} {
		if got := owner(holder); !proto.Equal(got, want) {
			t.Errorf("the owner %v is %v, not %v", holder, got, want)
		}
	}
}

// A description of a tier has all that the ledger knows of it.
func TestTiersAreDescribedCompletely(t *testing.T) {
	got := tierOf(&ledger.TierState{
		Name: "disk", SizeBytes: 1, UsedBytes: 2, HeldBytes: 3, CleanBytes: 4, EvictableBytes: 5, LeavingBytes: 6, ComingBytes: 7,
		OutBytes: 8, InBytes: 9, Failed: errors.New("full"), LargestFreeBytes: 10,
	})
	want := &millracev1.MemoryTier{
		Name: "disk", SizeBytes: 1, UsedBytes: 2, ObjectBytes: 3, CleanBytes: 4, EvictableBytes: 5, LeavingBytes: 6, ComingBytes: 7,
		WrittenBytes: 8, ReadBytes: 9, Failure: "full", LargestFreeBytes: 10,
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
