package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ends maps a file twice, as two processes do.
func ends(t *testing.T) (a, b *End) {
	t.Helper()
	file, err := Make()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	open := func(first bool) *End {
		e, err := Open(file, first)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		return e
	}
	return open(true), open(false)
}

// pattern returns a record that differs from all others of a test.
func pattern(i uint64, n int) []byte {
	b := make([]byte, max(n, 8))
	for at := range b {
		b[at] = byte(i + uint64(at)*7)
	}
	binary.LittleEndian.PutUint64(b, i)
	return b
}

func TestRecordsComeInTheirOrderBothWays(t *testing.T) {
	a, b := ends(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, way := range []struct {
		out *Writer
		in  *Reader
	}{{&a.Out, &b.In}, {&b.Out, &a.In}} {
		way.in.Awake()
		written, read := uint64(0), uint64(0)
		sizes := map[uint64]int{}
		for read < 20_000 {
			for range random.IntN(50) {
				n := random.IntN(100)
				if random.IntN(20) == 0 {
					n = random.IntN(64 << 10)
				}
				ok, wake := way.out.Put(pattern(written, n))
				if wake {
					t.Fatal("a reader that is awake was to be woken")
				}
				if !ok {
					break
				}
				sizes[written] = n
				written++
			}
			for range random.IntN(50) {
				got, err := way.in.Take()
				if err != nil {
					t.Fatal(err)
				}
				if got == nil {
					if read != written || way.in.Waiting() {
						t.Fatalf("%d of %d records came", read, written)
					}
					break
				}
				if want := pattern(read, sizes[read]); !bytes.Equal(got, want) {
					t.Fatalf("record %d of %d bytes came as %d bytes", read, len(want), len(got))
				}
				delete(sizes, read)
				read++
			}
		}
	}
}

func TestRecordsThatDoNotFitAreNotWritten(t *testing.T) {
	a, b := ends(t)
	if ok, _ := a.Out.Put(make([]byte, Room)); ok {
		t.Error("a record larger than the ring was written")
	}
	if ok, _ := a.Out.Put(make([]byte, Room-lengthBytes)); !ok {
		t.Error("a record as large as the ring was not written")
	}
	if ok, wake := a.Out.Put([]byte("x")); ok || wake {
		t.Errorf("into a full ring: %v %v", ok, wake)
	}
	if got, err := b.In.Take(); err != nil || len(got) != Room-lengthBytes {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if ok, _ := a.Out.Put([]byte("x")); !ok {
		t.Error("what was read takes room")
	}
}

// An empty record is refused: its length could not be told from memory that was never written,
// which the reader must notice.
func TestAnEmptyRecordIsNotWritten(t *testing.T) {
	a, b := ends(t)
	for _, record := range [][]byte{nil, {}} {
		if ok, wake := a.Out.Put(record); ok || wake {
			t.Errorf("written: %v, the reader is to be woken: %v", ok, wake)
		}
	}
	if got, err := b.In.Take(); got != nil || err != nil {
		t.Errorf("%q came: %v", got, err)
	}
	if ok, _ := a.Out.Put([]byte("x")); !ok {
		t.Error("nothing is written afterwards")
	}
	if got, err := b.In.Take(); string(got) != "x" || err != nil {
		t.Errorf("%q came: %v", got, err)
	}
}

// Runs all interleavings of the steps of a writer and a reader. No reader may sleep while a record
// waits. A reader that checked for records before it announced its sleep, and not afterwards, would
// do that.
func TestNobodySleepsOverARecord(t *testing.T) {
	a, b := ends(t)
	written, read, woken := 0, 0, false
	publish := func() {
		if !a.Out.publish([]byte("x")) {
			t.Fatal("it is full")
		}
		written++
	}
	call := func() {
		woken = a.Out.call() || woken
	}
	take := func() {
		for b.In.Waiting() {
			if _, err := b.In.Take(); err != nil {
				t.Fatal(err)
			}
			read++
		}
	}
	writer := []func(){publish, call, publish, call}
	for name, c := range map[string]struct {
		reader []func()
		wrong  bool
	}{
		"sleeps": {[]func(){b.In.Asleep, take}, false}, "looks and sleeps": {[]func(){b.In.Awake, take, take, b.In.Asleep, take}, false},
		"looks too soon": {[]func(){take, b.In.Asleep}, true}, "does not look": {[]func(){b.In.Awake, take, b.In.Asleep}, true},
	} {
		lost := 0
		const steps = 12
		for schedule := range 1 << steps {
			a.In.Asleep() // only the positions remain from the schedule before
			b.In.Asleep()
			take()
			written, read, woken = 0, 0, false
			wrote, did := 0, 0
			// goOn does the reader's next step. After the last one it sleeps until it is called.
			goOn := func() bool {
				if did == len(c.reader) {
					if !woken {
						return false
					}
					woken, did = false, 0
				}
				c.reader[did]()
				did++
				return true
			}
			for step := range steps {
				if schedule>>step&1 == 1 && wrote < len(writer) {
					writer[wrote]()
					wrote++
				} else if schedule>>step&1 == 0 {
					goOn()
				}
			}
			for ; wrote < len(writer); wrote++ {
				writer[wrote]()
			}
			for goOn() {
			}
			if read < written {
				lost++
			}
		}
		if lost > 0 != c.wrong {
			t.Errorf("a reader that %s: it sleeps over a record in %d of %d orders", name, lost, 1<<steps)
		}
	}
}

// A reader that sleeps whenever there is nothing, and is woken only when Put asked for it, gets
// every record.
func TestNoWakeUpIsLost(t *testing.T) {
	a, b := ends(t)
	const records = 30_000
	wake := make(chan struct{}, 1)
	var read atomic.Uint64
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for turn := 0; read.Load() < records; turn++ {
			b.In.Asleep()
			for !b.In.Waiting() {
				<-wake
				b.In.Asleep() // from here on it must be called again
			}
			if turn%2 == 0 {
				b.In.Awake()
			}
			for {
				record, err := b.In.Take()
				if err != nil {
					failed <- err
					return
				}
				if record == nil {
					break
				}
				read.Add(1)
			}
		}
	}()
	calls := 0
	deadline := time.After(5 * time.Minute)
	for i := range uint64(records) {
		for {
			ok, call := a.Out.Put(pattern(i, 8))
			if call {
				calls++
				wake <- struct{}{} // a called reader is not called again before it has continued
			}
			if ok {
				break
			}
			select {
			case <-deadline:
				t.Fatalf("stuck after %d of %d records and %d calls", read.Load(), i, calls)
			default:
				runtime.Gosched() // the reader may need this processor
			}
		}
		if i%3 == 0 { // one at a time: each record is the last one that can wake the reader
			for read.Load() <= i {
				select {
				case <-deadline:
					t.Fatalf("stuck after %d of %d records and %d calls", read.Load(), i, calls)
				default:
					runtime.Gosched()
				}
			}
		}
	}
	select {
	case err := <-failed:
		if err != nil {
			t.Fatal(err)
		}
	case <-deadline:
		t.Fatalf("stuck after %d records and %d calls", read.Load(), calls)
	}
}

func TestScribblingHarmsNobody(t *testing.T) {
	a, b := ends(t)
	random := rand.New(rand.NewPCG(3, 4))
	scribble := func(e *End) {
		for range 20 {
			at := random.IntN(len(e.data)/8) * 8
			switch random.IntN(3) {
			case 0:
				at = []int{headAt, tailAt, stateAt}[random.IntN(3)] + random.IntN(2)*ringBytes
			case 1:
				at = pageBytes + random.IntN(16)*8 + random.IntN(2)*ringBytes
			}
			binary.NativeEndian.PutUint64(e.data[at:], random.Uint64()>>random.IntN(64))
		}
	}
	nonsense := 0
	for range 2000 {
		for i := range uint64(20) {
			a.Out.Put(pattern(i, random.IntN(1000)))
			scribble(b)
			if record, err := b.In.Take(); err != nil {
				if !errors.Is(err, ErrNonsense) {
					t.Fatal(err)
				}
				nonsense++
			} else if len(record) > Room {
				t.Fatalf("a record of %d bytes", len(record))
			}
			scribble(a)
		}
	}
	if nonsense == 0 {
		t.Error("nothing was noticed")
	}
}

func TestOtherFilesAreRefused(t *testing.T) {
	sealed := func(n int64, seals int) *os.File {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "x")
		t.Cleanup(func() { _ = f.Close() })
		if err := f.Truncate(n); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for name, f := range map[string]*os.File{
		"too small": sealed(fileBytes-1, unix.F_SEAL_SHRINK), "it could shrink": sealed(fileBytes, unix.F_SEAL_GROW),
		"empty": sealed(fileBytes, unix.F_SEAL_SHRINK),
	} {
		if e, err := Open(f, true); !errors.Is(err, ErrNonsense) {
			t.Errorf("%s: %v %v", name, e, err)
		}
	}
}

func BenchmarkPutAndTake(b *testing.B) {
	file, err := Make()
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	one, err := Open(file, true)
	if err != nil {
		b.Fatal(err)
	}
	two, err := Open(file, false)
	if err != nil {
		b.Fatal(err)
	}
	two.In.Awake()
	record := make([]byte, 41)
	for b.Loop() {
		one.Out.Put(record)
		if got, err := two.In.Take(); err != nil || len(got) != len(record) {
			b.Fatal(err)
		}
	}
}
