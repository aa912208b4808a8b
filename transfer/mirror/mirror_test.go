package mirror_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/mirror"
	"github.com/millrace/millrace/transfer/transfertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

const base = 8192

// tier is a memory.DirectTier in the heap that reaches one far space.
type tier struct {
	memory.Tier // unused
	host        transfertest.Heap
	far         *transfertest.Far
	err         error
}

func (t *tier) Reaches(s memory.Space) bool  { return s == memory.Space(t.far) }
func (t *tier) Host() (memory.Space, uint64) { return hostOf{t}, base }

// hostOf makes the heap space comparable.
type hostOf struct{ tier *tier }

func (h hostOf) Size() uint64               { return h.tier.host.Size() }
func (h hostOf) Identity() memory.Identity  { return memory.Identity{} }
func (h hostOf) Bytes(off, n uint64) []byte { return h.tier.host.Bytes(off, n) }
func (h hostOf) FD() int                    { return -1 }

func (t *tier) Save(off uint64, _ memory.Space, f memory.Frame) error {
	return errors.Join(t.err, t.far.ReadInto(f.Offset, t.host.Bytes(base+off, f.Bytes)))
}

func (t *tier) Gather(off uint64, _ memory.Space, pieces []memory.Piece) error {
	for _, p := range pieces {
		if err := t.Save(off+p.At, t.far, p.Frame); err != nil {
			return err
		}
	}
	return nil
}

func (t *tier) Load(off uint64, _ memory.Space, f memory.Frame) error {
	return errors.Join(t.err, t.far.WriteFrom(f.Offset, t.host.Bytes(base+off, f.Bytes)))
}

func newMirror(t *testing.T) (*mirror.Mirror, *tier, *transfertest.Objects) {
	t.Helper()
	x := &tier{host: make([]byte, 4<<20), far: transfertest.NewFar(t, 16<<20)}
	m, err := mirror.New(x, 1<<20, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return m, x, transfertest.NewObjectsIn(transfertest.NewRoom(x.far))
}

func ref(task int) transfer.Ref { return transfer.Ref{Task: idOf(task), Generation: 1} }

func TestObjectsOfADeviceAreReadInHostMemory(t *testing.T) {
	m, x, objects := newMirror(t)
	one, two := bytes.Repeat([]byte("one"), 1000), bytes.Repeat([]byte("two"), 100000)
	objects.Put(ref(1), "header", one, nil, two)
	objects.Put(ref(2), "large", bytes.Repeat([]byte{1}, 1<<20))
	s := m.Source(objects)
	leased := s.Lease(transfer.Reader{}, []transfer.Ref{ref(1), ref(2), ref(3)}, time.Minute)
	l := leased[0]
	if l.Err != nil || string(l.Head.Header) != "header" || len(l.Regions) != 3 {
		t.Fatalf("%+v", l)
	}
	for i, want := range [][]byte{one, nil, two} {
		if r := l.Regions[i]; r.Space != m.Space() || !bytes.Equal(r.Bytes(), want) {
			t.Errorf("frame %d: other bytes", i)
		}
	}
	if !errors.Is(leased[1].Err, transfer.ErrUnreachable) || leased[1].Lease != 0 {
		t.Errorf("an object without room: %+v", leased[1])
	}
	if !errors.Is(leased[2].Err, transfer.ErrNotHere) {
		t.Errorf("an object that is not there: %v", leased[2].Err)
	}
	if n := objects.Leases(); n != 0 {
		t.Errorf("%d objects are kept on the device", n)
	}
	if held := s.Renew([]transfer.LeaseID{l.Lease, 77}, time.Minute); !held[0] || held[1] {
		t.Errorf("renewed: %v", held)
	}
	if held := s.Release([]transfer.LeaseID{77, l.Lease}); held[0] || !held[1] || m.UsedBytes() != 0 {
		t.Errorf("released: %v, %d bytes are taken", held, m.UsedBytes())
	}
	if held := s.Release([]transfer.LeaseID{l.Lease}); held[0] {
		t.Error("released twice")
	}
	x.err = errors.New("the device is lost")
	if l := s.Lease(transfer.Reader{}, []transfer.Ref{ref(1)}, 0)[0]; !errors.Is(l.Err, x.err) || m.UsedBytes() != 0 || objects.Leases() != 0 {
		t.Errorf("%+v, %d bytes are taken", l, m.UsedBytes())
	}
}

func TestWrittenObjectsGoToTheDevice(t *testing.T) {
	m, x, objects := newMirror(t)
	receiver := m.Receiver(&farReceiver{x.far, objects})
	head := transfer.Head{Ref: ref(1), Header: []byte("h"), FrameBytes: []uint64{300000, 0, 7}}
	in, err := receiver.Create(t.Context(), head)
	if err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("abc"), 100000)
	regions := in.Regions()
	copy(regions[0].Bytes(), content)
	copy(regions[2].Bytes(), "seven!!")
	if err := in.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	frames, _ := objects.Get(ref(1))
	if len(frames) != 3 || !bytes.Equal(frames[0], content) || string(frames[2]) != "seven!!" || m.UsedBytes() != 0 {
		t.Errorf("%d frames, %d bytes are taken", len(frames), m.UsedBytes())
	}
	if in, err = receiver.Create(t.Context(), head); err != nil {
		t.Fatal(err)
	}
	in.Abort()
	if in, err = receiver.Create(t.Context(), head); err != nil {
		t.Fatal(err)
	}
	x.err = errors.New("the device is lost")
	if err := in.Commit(t.Context()); !errors.Is(err, x.err) || m.UsedBytes() != 0 {
		t.Errorf("%v, %d bytes are taken", err, m.UsedBytes())
	}
	head.FrameBytes[0] = 2 << 20
	if _, err := receiver.Create(t.Context(), head); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("larger than the mirror: %v", err)
	}
}
