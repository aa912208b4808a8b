package borrow

import (
	"strings"
	"testing"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/transfer"
)

// TestALengthThatDiffersIsNamed: the error about an answer whose lists do not fit together has the
// lengths of all lists, so that it shows which one differs.
func TestALengthThatDiffersIsNamed(t *testing.T) {
	for list, cut := range map[string]func(*hostv1.BorrowAcquiredMany){
		"0 lease numbers":  func(pb *hostv1.BorrowAcquiredMany) { pb.LeaseIds = nil },
		"0 refusals":       func(pb *hostv1.BorrowAcquiredMany) { pb.Refusals = nil },
		"0 generations":    func(pb *hostv1.BorrowAcquiredMany) { pb.Generations = nil },
		"0 frame counts":   func(pb *hostv1.BorrowAcquiredMany) { pb.Frames = nil },
		"0 header lengths": func(pb *hostv1.BorrowAcquiredMany) { pb.HeaderBytes = nil },
		"0 frame offsets":  func(pb *hostv1.BorrowAcquiredMany) { pb.FrameOffsets = nil },
		"0 frame sizes":    func(pb *hostv1.BorrowAcquiredMany) { pb.FrameBytes = nil },
	} {
		pb := &hostv1.BorrowAcquiredMany{
			LeaseIds: []uint64{1}, Refusals: []hostv1.Refusal{0}, Generations: []uint32{1}, Frames: []uint32{1}, HeaderBytes: []uint32{0},
			FrameOffsets: []uint64{4096}, FrameBytes: []uint64{8},
		}
		cut(pb)
		b := &Batch{Objects: make([]Lent, 1), leases: make([]lease, 1)}
		err := b.read(transfer.Peer{}, []transfer.Ref{{Task: 1, Generation: 1}}, pb)
		if err == nil || !strings.Contains(err.Error(), list) || strings.Count(err.Error(), " 0 ") != 1 {
			t.Errorf("%v, want an error with %q and no other empty list", err, list)
		}
	}
}
