package ucx

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// flat is a space in the heap.
type flat []byte

func (f *flat) Size() uint64               { return uint64(len(*f)) }
func (f *flat) Identity() memory.Identity  { return memory.Identity{} }
func (f *flat) Bytes(off, n uint64) []byte { return (*f)[off : off+n : off+n] }
func (f *flat) FD() int                    { return -1 }

// distant is a space that the CPU cannot address.
type distant struct{ flat }

func (*distant) Bytes(uint64, uint64) []byte { return nil }

func leasedObject(space memory.Space, lease transfer.LeaseID, header string, frames ...memory.Frame) transfer.Leased {
	l := transfer.Leased{Lease: lease, Head: transfer.Head{Ref: transfer.Ref{Task: 7, Generation: 3}, Header: []byte(header)}}
	for _, f := range frames {
		l.Head.FrameBytes = append(l.Head.FrameBytes, f.Bytes)
		l.Regions = append(l.Regions, transfer.Region{Space: space, Frame: f})
	}
	return l
}

func TestGrantsArriveAsTheyWereComposed(t *testing.T) {
	data, other := flat(bytes.Repeat([]byte("0123456789"), 100)), flat(make([]byte, 400))
	c := &Context{config: Config{Space: &data, InlineBytes: 100}.withDefaults()}
	a := c.answer([]transfer.Leased{
		leasedObject(&data, 11, "large", memory.Frame{Offset: 5, Bytes: 400}, memory.Frame{}, memory.Frame{Offset: 500, Bytes: 1}),
		leasedObject(&data, 12, "small", memory.Frame{Offset: 3, Bytes: 4}, memory.Frame{Offset: 9, Bytes: 2}),
		{Err: transfer.ErrNotHere},
		{Err: errors.New("rotten")},
		leasedObject(&data, 13, "no frames"),
		leasedObject(&other, 14, "elsewhere", memory.Frame{Bytes: 400}),
		leasedObject(new(distant), 15, "small and spilled", memory.Frame{Bytes: 4}),
	}, false)
	b := a.append(nil)
	if len(b) != a.bytes {
		t.Fatalf("%d bytes were announced, %d came", a.bytes, len(b))
	}
	r := &reader{b: b}
	var got []grant
	for range a.leased {
		got = append(got, r.grant(uint64(len(data))))
	}
	if r.err != nil || len(r.b) != 0 {
		t.Fatalf("%v, %d bytes are left", r.err, len(r.b))
	}
	ref := transfer.Ref{Task: 7, Generation: 3}
	want := []grant{
		{kind: grantLease, lease: 11, head: transfer.Head{Ref: ref, Header: []byte("large"), FrameBytes: []uint64{400, 0, 1}}, offsets: []uint64{5, 0, 500}},
		{kind: grantInline, head: transfer.Head{Ref: ref, Header: []byte("small"), FrameBytes: []uint64{4, 2}}},
		{kind: grantMissing},
		{kind: grantError, text: "rotten"},
		{kind: grantInline, head: transfer.Head{Ref: ref, Header: []byte("no frames")}, bytes: []byte{}},
		{kind: grantElsewhere, text: "it does not lie in the registered slab"},
		{kind: grantElsewhere, text: "it does not lie in the registered slab"},
	}
	want[1].bytes = []byte("3456" + "90")
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("grant %d: %+v, want %+v", i, got[i], want[i])
		}
	}
	held, spent, objects := a.leases()
	if !reflect.DeepEqual(held, []transfer.LeaseID{11}) || !reflect.DeepEqual(spent, []transfer.LeaseID{12, 13, 14, 15}) {
		t.Errorf("held %v, spent %v", held, spent)
	}
	if a.confirm(objects, []bool{false, true, true, true}) || a.kinds[1] != grantMissing {
		t.Error("bytes that were not protected while they were copied would be sent")
	}
	if b := a.append(nil); len(b) != a.bytes {
		t.Errorf("then %d bytes were announced, %d came", a.bytes, len(b))
	}
}

func TestHeadersComeBack(t *testing.T) {
	want := preamble{token: 1 << 63, request: 1<<40 + 1, kind: messageData, count: 1 << 31}
	if got := want.header().preamble(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	data := flat(make([]byte, 100<<10))
	c := &Context{config: Config{Space: &data}.withDefaults()}
	var leased []transfer.Leased
	for range 40 {
		leased = append(leased, leasedObject(&data, 1, string(make([]byte, 300<<10)), memory.Frame{Bytes: 60 << 10}))
	}
	a := c.answer(leased, false)
	kinds := map[grantKind]int{}
	for _, k := range a.kinds {
		kinds[k]++
	}
	if a.bytes > answerRoom+1<<10 || kinds[grantInline]*60<<10 > inlineRoom || kinds[grantInline] == 0 || kinds[grantLease] == 0 || kinds[grantLater] == 0 {
		t.Errorf("%d bytes, %v", a.bytes, kinds)
	}
}

func FuzzMessages(f *testing.F) {
	data := flat(make([]byte, 1000))
	c := &Context{config: Config{Space: &data, InlineBytes: 100}.withDefaults()}
	a := c.answer([]transfer.Leased{
		leasedObject(&data, 11, "large", memory.Frame{Offset: 5, Bytes: 400}), leasedObject(&data, 12, "small", memory.Frame{Offset: 3, Bytes: 4}),
		{Err: transfer.ErrNotHere}, {Err: errors.New("rotten")},
	}, false)
	f.Add(a.append(nil), uint32(4))
	f.Fuzz(func(t *testing.T, b []byte, count uint32) {
		r := &reader{b: b}
		for range min(count, 1000) {
			g := r.grant(uint64(len(data)))
			if r.err != nil {
				return
			}
			switch g.kind {
			case grantLease:
				for i, n := range g.head.FrameBytes {
					if n > 0 && !(memory.Frame{Offset: g.offsets[i], Bytes: n}).Within(uint64(len(data))) {
						t.Errorf("frame [%d, +%d) of a peer with %d bytes", g.offsets[i], n, len(data))
					}
				}
			case grantInline:
				if g.head.Bytes() != uint64(len(g.bytes)) {
					t.Errorf("%d bytes for frames of %d", len(g.bytes), g.head.Bytes())
				}
			case grantMissing, grantError, grantElsewhere, grantLater:
			}
		}
		_ = (&reader{b: b}).refs(count)
	})
}
