package store_test

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/value"
)

const itemBytes = 512 << 10

func bytesIn(frame uint32, bytes uint64) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
		Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{int64(bytes)}, Location: &millracev1.Tensor_Frame{Frame: frame},
	}}}
}

// putList stores a list of three items: a tensor, a number and a tensor. The bytes of the tensors
// are 1 and 2.
func (s *spilling) putList(t *testing.T, task int) {
	t.Helper()
	s.putListOf(t, task, itemBytes)
}

// putListOf is putList with tensors of another size.
func (s *spilling) putListOf(t *testing.T, task int, itemBytes uint64) {
	t.Helper()
	number := &millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: 5}}
	header, err := proto.Marshal(&millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: &millracev1.ListValue{
		Values: []*millracev1.Value{bytesIn(0, itemBytes), number, bytesIn(1, itemBytes)},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.ReserveWait(t.Context(), ledger.Holder{Kind: ledger.HolderTask, ID: uint64(task)}, []uint64{itemBytes, itemBytes}, s.wait)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release(r)
	frames, err := s.Allocate(r, id(task, 1), itemBytes, itemBytes)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		b := bytes.Repeat([]byte{byte(i + 1)}, int(itemBytes))
		if far, ok := s.Space().(memory.Staged); !ok {
			copy(s.View(f), b)
		} else if err := far.WriteFrom(f.Offset, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Seal(id(task, 1), header); err != nil {
		t.Fatal(err)
	}
}

func item(task int, n ids.Item) ledger.ObjectID {
	x := id(task, 1)
	x.Item = n
	return x
}

// content reads a region.
func content(t *testing.T, r transfer.Region) []byte {
	t.Helper()
	out := make([]byte, r.Frame.Bytes)
	if from, ok := r.Space.(memory.Reader); !ok {
		copy(out, r.Bytes())
	} else if err := from.ReadInto(r.Frame.Offset, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// A reader of an item sees only its frames, in the slab and in the tier below.
func TestItemsAreLeased(t *testing.T) {
	inBoth(t, func(t *testing.T, open func(*testing.T) *spilling) {
		t.Helper()
		s := open(t)
		for task := range 8 { // 8 MiB in a slab of 4
			s.putList(t, task+1)
		}
		s.settle(t)
		for task := range 8 {
			refs := []transfer.Ref{transfer.Ref(item(task+1, 3)), transfer.Ref(item(task+1, 2)), transfer.Ref(item(task+1, 4)), transfer.Ref(item(task+20, 1))}
			leased := s.Source().Lease(transfer.Reader{}, refs, 0)
			l := leased[0]
			if l.Err != nil || l.Head.Ref != refs[0] || len(l.Regions) != 1 || l.Head.FrameBytes[0] != itemBytes || !bytes.Equal(content(t, l.Regions[0]), bytes.Repeat([]byte{2}, itemBytes)) {
				t.Errorf("%s: %v, %s with %d regions", refs[0], l.Err, l.Head.Ref, len(l.Regions))
			}
			if l := leased[1]; l.Err != nil || len(l.Regions) != 0 || !bytes.Equal(l.Head.Header, []byte{0x18, 10}) {
				t.Errorf("%s: %v, %x with %d regions", refs[1], l.Err, l.Head.Header, len(l.Regions))
			}
			if why, absent := value.Absent(leased[2].Head.Header); !absent || why != "is a list of 3 items" {
				t.Errorf("%s: absent %v, because it %s", refs[2], absent, why)
			}
			if err := leased[3].Err; !errors.Is(err, transfer.ErrNotHere) {
				t.Errorf("%s: %v", refs[3], err)
			}
			s.Source().Release([]transfer.LeaseID{leased[0].Lease, leased[1].Lease, leased[2].Lease})
		}
	})
}

// An attempt gets the list itself if that is in the slab, and otherwise needs a copy of the item.
func TestItemsAreAdmitted(t *testing.T) {
	s := newSpilling(t)
	s.putList(t, 1)
	got, _ := s.Admit(9, 1, 0, []ledger.ObjectID{item(1, 3), id(1, 1), item(2, 1)}, false, false, nil)
	if got[0].ID != id(1, 1) || got[1].ID != id(1, 1) || got[2].ID != (ledger.ObjectID{}) {
		t.Errorf("in the slab: %v", got)
	}
	s.Unpin(id(1, 1), 9, 1)
	if got, _ := s.Admit(9, 4, 0, []ledger.ObjectID{item(1, 3)}, false, true, nil); got[0].ID != (ledger.ObjectID{}) {
		t.Errorf("a copy was wanted: %v", got)
	}
	for task := 2; task < 8; task++ {
		s.putList(t, task)
	}
	s.settle(t)
	got, loose := s.Admit(9, 2, 0, []ledger.ObjectID{item(1, 3)}, false, false, nil)
	if got[0].ID != (ledger.ObjectID{}) || !loose {
		t.Errorf("below the slab: %v, loose %v", got[0].ID, loose)
	}
	// The newest is in the slab, which is full.
	if got, _ = s.Admit(9, 3, 0, []ledger.ObjectID{item(7, 1)}, false, false, nil); got[0].ID != (ledger.ObjectID{}) {
		t.Errorf("in a full slab: %v", got)
	}
	for task := range 7 {
		s.Drop(id(task+1, 1))
	}
	var all []ledger.ObjectID
	for task := 11; task < 13; task++ {
		s.putList(t, task)
		all = append(all, item(task, 1), item(task, 3))
	}
	s.settle(t)
	s.putListOf(t, 13, 64<<10)
	all = append(all, item(13, 1), item(11, 2), item(13, 3))
	got, _ = s.Admit(9, 3, 0, all, false, false, nil)
	for i, list := range []ledger.ObjectID{id(11, 1), id(11, 1), id(12, 1), id(12, 1), {}, id(11, 1), {}} {
		// The list that exceeds half of the slab is not there; the others count once each.
		if got[i].ID != list {
			t.Errorf("item %d, %s, of lists of half of the slab and more is %s", i, all[i], got[i].ID)
		}
	}
	for _, o := range got {
		s.Unpin(o.ID, 9, 3)
	}
}

// A copy of an item is no replica: it is neither listed nor the newest generation of its task.
func TestCopiesOfItemsAreNoReplicas(t *testing.T) {
	s := newSpilling(t)
	if err := s.PutSmall(item(1, 2), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Lookup(ledger.ObjectID{Task: 1}); ok {
		t.Error("an item was found as the newest generation of a task")
	}
	if all := s.Inventory(); len(all) != 0 {
		t.Errorf("listed: %v", all)
	}
	got, _ := s.Admit(9, 1, 0, []ledger.ObjectID{item(1, 2)}, false, false, nil)
	if got[0].ID != item(1, 2) {
		t.Errorf("the copy is not found: %v", got[0].ID)
	}
	s.Forget()
	if s.Here(item(1, 2)) {
		t.Error("the copy was not forgotten")
	}
}

// A slab with little room lends nothing to readers that keep it; others copy it meanwhile.
func TestAFullSlabIsNotLent(t *testing.T) {
	s := newSpilling(t)
	lent := func(keeps bool) error {
		l := s.Source().Lease(transfer.Reader{Worker: 2, Keeps: keeps}, []transfer.Ref{transfer.Ref(item(1, 3))}, 0)[0]
		s.Source().Release([]transfer.LeaseID{l.Lease})
		return l.Err
	}
	s.putList(t, 1)
	if err := lent(true); err != nil {
		t.Errorf("with room: %v", err)
	}
	for task := 2; task < 8; task++ {
		s.putList(t, task)
	}
	if err := lent(true); !errors.Is(err, ledger.ErrNoRoom) || errors.Is(err, transfer.ErrNotHere) {
		t.Errorf("without room: %v", err)
	}
	if err := lent(false); err != nil {
		t.Errorf("to be copied: %v", err)
	}
}
