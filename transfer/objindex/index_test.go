package objindex_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
)

// childEnv makes this test binary run as a reader of the index and the slots whose descriptors it
// inherits.
const childEnv = "MILLRACE_TEST_READ_INDEX"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := readAsChild(os.Stdin, os.Stdout); err != nil {
			fmt.Println(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func ref(task int) transfer.Ref { return transfer.Ref{Task: ids.TaskID(task), Generation: 1} }

func closing(tb testing.TB, c io.Closer) {
	tb.Helper()
	if err := c.Close(); err != nil {
		tb.Error(err)
	}
}

func newIndex(tb testing.TB, entries int, ttl time.Duration) *objindex.Index {
	tb.Helper()
	b, err := objindex.New(entries, ttl)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, b) })
	return b
}

// connect connects a reader to an index.
func connect(tb testing.TB, b *objindex.Index) (*objindex.ReaderSlots, *objindex.Reader) {
	tb.Helper()
	s, err := b.NewReaderSlots()
	if err != nil {
		tb.Fatal(err)
	}
	v, err := objindex.Open(b.File(), s.File())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		closing(tb, v)
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s, v
}

const size = 1 << 20

func frame(n int) memory.Frame {
	return memory.Frame{Offset: uint64(n) % 1000 * 256, Bytes: uint64(n)%256 + 1}
}

func pin(tb testing.TB, v *objindex.Reader) objindex.ReadGuard {
	tb.Helper()
	g, ok := v.Pin()
	if !ok {
		tb.Fatal("all slots are taken")
	}
	return g
}

func TestPublishedObjectsAreFound(t *testing.T) {
	b := newIndex(t, 1<<10, 0)
	_, v := connect(t, b)
	// Each tenth object is a list: its frames and its header need a block of their own.
	lengths := func(n int) (header, frames int) {
		if n%10 == 0 {
			return n % 90 * 50, n % 200
		}
		return n % 90, n % 8
	}
	header := func(n int) []byte {
		length, _ := lengths(n)
		return bytes.Repeat([]byte{byte(n)}, length)
	}
	frames := func(n int) (list []memory.Frame) {
		_, count := lengths(n)
		for i := range count {
			list = append(list, frame(n+i))
		}
		return list
	}
	const count = 800
	shown := make(map[int]bool)
	for n := 1; n <= count; n++ {
		shown[n] = b.Publish(ref(n), header(n), frames(n))
	}
	check := func(found objindex.Found) {
		t.Helper()
		g := pin(t, v)
		found.Begin(count)
		var kept []objindex.Object
		for n := 1; n <= count+100; n++ {
			o, ok := g.Find(ref(n), size, &found)
			kept = append(kept, o)
			if ok != shown[n] {
				t.Fatalf("object %d: found %v, published %v", n, ok, shown[n])
			}
			if _, other := g.Find(transfer.Ref{Task: ids.TaskID(n), Generation: 2}, size, &found); other {
				t.Fatalf("another generation of object %d is found", n)
			}
		}
		for n := 1; n <= count; n++ {
			if o := kept[n-1]; shown[n] && (!bytes.Equal(o.Header, header(n)) || !slices.Equal(o.Frames, frames(n)) || len(o.Sizes) != len(o.Frames)) {
				t.Fatalf("object %d is %+v", n, o)
			}
		}
		if !g.End(7) {
			t.Error("it did not hold")
		}
	}
	check(objindex.Found{})
	full := 0
	for n := 1; n <= count; n++ {
		if !shown[n] {
			full++
		}
		if n%3 == 0 {
			if b.Unpublish(ref(n)) != shown[n] {
				t.Errorf("object %d was not unpublished", n)
			}
			shown[n] = false
		}
	}
	if full > count/50 {
		t.Errorf("%d of %d objects had no room in an index for 1,024", full, count)
	}
	check(objindex.Found{})
	for n := 3; n <= count; n += 3 {
		shown[n] = b.Publish(ref(n), header(n), frames(n))
	}
	check(objindex.Found{})
	if s := b.Stats(); s.ReadBytes != 21 || s.Readers != 1 || s.Revoked != 0 {
		t.Errorf("%+v", s)
	}
}

func TestObjectsThatDoNotFitAreNotPublished(t *testing.T) {
	b := newIndex(t, 16, 0)
	_, v := connect(t, b)
	for name, shown := range map[string]bool{
		"long header": b.Publish(ref(1), make([]byte, objindex.MaxHeader+1), nil), "many frames": b.Publish(ref(2), nil, make([]memory.Frame, objindex.MaxFrames+1)),
		"no room": b.Publish(ref(3), make([]byte, objindex.MaxHeader), nil), "no generation": b.Publish(transfer.Ref{Task: 4}, nil, nil),
	} {
		if shown {
			t.Error(name)
		}
	}
	full := 0
	for n := 1; n <= 100; n++ {
		if !b.Publish(ref(n), nil, []memory.Frame{frame(n)}) {
			full++
		}
	}
	if full < 84 {
		t.Errorf("%d objects of 100 had no room in an index for 16", full)
	}
	// A frame beyond the memory that was passed is refused.
	b.Unpublish(ref(1))
	if !b.Publish(ref(1), nil, []memory.Frame{{Offset: size - 1, Bytes: 2}}) {
		t.Fatal("no room for one that had it")
	}
	var found objindex.Found
	if _, ok := pin(t, v).Find(ref(1), size, &found); ok {
		t.Error("a frame beyond the memory is found")
	}
}

// The room of long payloads is used again, and objects that find none there are not published.
func TestRoomOfLongPayloadsIsUsedAgain(t *testing.T) {
	b := newIndex(t, 16, 0)
	_, v := connect(t, b)
	long := bytes.Repeat([]byte("header "), 900)
	var found objindex.Found
	for n := 1; n <= 50; n++ {
		if !b.Publish(ref(n), long, []memory.Frame{frame(n)}) {
			t.Fatalf("object %d has no room", n)
		}
		g := pin(t, v)
		found.Begin(1)
		if o, ok := g.Find(ref(n), size, &found); !ok || !bytes.Equal(o.Header, long) || o.Frames[0] != frame(n) {
			t.Errorf("object %d: %v, %+v", n, ok, o)
		}
		g.End(0)
		shown := 0
		for other := 100; other < 110; other++ {
			if b.Publish(ref(other), long, nil) {
				shown++
			}
		}
		if shown == 0 || shown == 10 {
			t.Errorf("%d objects of %d bytes have room", shown, len(long))
		}
		for other := 100; other < 110; other++ {
			b.Unpublish(ref(other))
		}
		b.Unpublish(ref(n))
	}
}

// Runs each interleaving of the steps of one reader and the lender, as the package comment
// describes them. Delivered bytes were never overwritten, and an idle slot delays nothing.
func TestEachInterleavingOfOneReaderAndTheLender(t *testing.T) {
	for n := range 4 {
		late, together := n&1 != 0, n&2 != 0
		delivered, discarded, waited := 0, 0, 0
		for order := range 1 << 8 {
			b := newIndex(t, 16, time.Second)
			_, v := connect(t, b)
			b.Publish(ref(1), nil, []memory.Frame{frame(0)})
			now := time.Now()
			stamp, read, found, looked := 1, 0, false, false
			var lists objindex.Found
			var g objindex.ReadGuard
			var over func(time.Time) bool
			unpublished, asked, overwritten := false, false, false
			reader := []func(){
				func() { g, looked = v.Pin() },
				func() {
					if together {
						var head [1]transfer.Head
						g.FindAll([]transfer.Ref{ref(1)}, size, &lists, head[:])
						found = head[0].Ref == ref(1)
					} else {
						_, found = g.Find(ref(1), size, &lists)
					}
				},
				func() { read = stamp },
				func() {
					if held := g.End(0); held && found {
						if delivered++; read != 1 {
							t.Fatalf("order %b: bytes of another object were delivered", order)
						}
					} else if !held {
						discarded++
					}
				},
			}
			overwrite := func() {
				if overwritten {
					return
				}
				if over == nil || over(now) {
					stamp, overwritten = 2, true
				} else {
					waited++
				}
			}
			lender := []func(){
				func() { unpublished = b.Unpublish(ref(1)) },
				func() { over, asked = b.Readers(now), true },
				overwrite,
				func() {
					if late {
						now = now.Add(2 * time.Second)
					}
					overwrite()
				},
			}
			for bit := range 8 {
				if order>>bit&1 == 0 && len(reader) > 0 || len(lender) == 0 {
					reader[0]()
					reader = reader[1:]
				} else {
					lender[0]()
					lender = lender[1:]
				}
			}
			overwrite()
			if !unpublished || !asked || !looked || !overwritten {
				t.Fatalf("order %b: unpublished %v, asked %v, looked %v, overwritten %v in the end", order, unpublished, asked, looked, overwritten)
			}
		}
		if delivered == 0 || waited == 0 || late != (discarded > 0) {
			t.Errorf("late %v: %d delivered, %d discarded, waited %d times", late, delivered, discarded, waited)
		}
	}
}

// Many readers, some of them slow, and a lender that reuses its memory as fast as it may. Each
// delivered word must have the stamp of the requested object.
func TestNoReaderValidatesBytesThatWereOverwritten(t *testing.T) {
	const places, wordsEach, readers, most = 24, 32, 4, 40
	ttl := 2 * time.Millisecond
	b := newIndex(t, 64, ttl)
	var memoryWords [places * wordsEach]atomic.Uint64
	where := func(place int) memory.Frame {
		return memory.Frame{Offset: uint64(place * wordsEach * 8), Bytes: wordsEach * 8}
	}
	var newest [places]atomic.Uint64 // the latest task whose bytes are, or were, at a place
	stop := make(chan struct{})
	var delivered, discarded, missed atomic.Uint64
	var group sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); group.Wait() })
	for i := range readers {
		_, v := connect(t, b)
		group.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			var found objindex.Found
			for {
				select {
				case <-stop:
					return
				default:
				}
				g, ok := v.Pin()
				if !ok {
					t.Error("no slot")
					return
				}
				found.Begin(places)
				type got struct {
					task  uint64
					words []uint64
				}
				var all []got
				var keys [most]transfer.Ref
				var heads [most]transfer.Head
				var frames [most][]memory.Frame
				n := r.IntN(r.IntN(most)+1) + 1
				for j := range n {
					keys[j] = ref(int(newest[r.IntN(places)].Load()))
				}
				together := r.IntN(2) == 0
				if together {
					list, _ := g.FindAll(keys[:n], size, &found, heads[:n])
					for j := range n {
						if heads[j].Ref == keys[j] {
							frames[j], list = list[:1], list[1:]
						}
					}
				}
				for j, k := range keys[:n] {
					ok := heads[j].Ref == k
					if !together {
						var o objindex.Object
						o, ok = g.Find(k, size, &found)
						frames[j] = o.Frames
					}
					if !ok {
						missed.Add(1)
						continue
					}
					one := got{task: uint64(k.Task)}
					for w := range frames[j][0].Bytes / 8 {
						one.words = append(one.words, memoryWords[frames[j][0].Offset/8+w].Load())
						if r.IntN(5000) == 0 {
							<-time.After(2 * ttl) // simulates a stopped reader
						}
					}
					all = append(all, one)
				}
				if !g.End(0) {
					discarded.Add(1)
					continue
				}
				for _, one := range all {
					delivered.Add(1)
					for _, w := range one.words {
						if w != one.task {
							t.Errorf("object %d was delivered with bytes of %d", one.task, w)
							return
						}
					}
				}
			}
		})
	}
	t.Cleanup(end) // It runs before the cleanups of the readers.
	type vacated struct {
		place int
		over  func(time.Time) bool
	}
	r := rand.New(rand.NewPCG(7, 7))
	var free []int
	var waiting []vacated
	for i := range places {
		free = append(free, i)
	}
	task, full := uint64(0), uint64(0)
	limit := time.Now().Add(5 * time.Minute)
	for steps := 0; steps < 20000 || delivered.Load() < 1000 || discarded.Load() == 0; steps++ {
		if time.Now().After(limit) {
			t.Errorf("%d delivered, %d discarded, %d missed in time", delivered.Load(), discarded.Load(), missed.Load())
			break
		}
		if len(free) > 0 {
			place := free[0]
			free = free[1:]
			task++
			for w := range wordsEach {
				memoryWords[place*wordsEach+w].Store(task)
			}
			if b.Publish(ref(int(task)), nil, []memory.Frame{where(place)}) {
				newest[place].Store(task)
			} else {
				full++ // Both buckets of the object are full, which is rare.
				free = append(free, place)
			}
		}
		place := r.IntN(places)
		if b.Unpublish(ref(int(newest[place].Load()))) {
			if over := b.Readers(time.Now()); over == nil {
				free = append(free, place)
			} else {
				waiting = append(waiting, vacated{place, over})
			}
		}
		waiting = slices.DeleteFunc(waiting, func(v vacated) bool {
			over := v.over(time.Now())
			if over {
				free = append(free, v.place)
			}
			return over
		})
	}
	end()
	t.Logf("%d delivered, %d discarded, %d missed, %d objects, %d without room, %d revoked", delivered.Load(), discarded.Load(), missed.Load(), task, full, b.Revoked())
	if full > task/100 {
		t.Errorf("%d of %d objects had no room in an index that is at most %d %% full", full, task, 100*places/64)
	}
}

// readAsChild takes a slot, looks object 1 up, reports the result, and ends the guard when it reads
// a line.
func readAsChild(in io.Reader, out io.Writer) error {
	v, err := objindex.Open(os.NewFile(3, "index"), os.NewFile(4, "slots"))
	if err != nil {
		return err
	}
	g, _ := v.Pin()
	var found objindex.Found
	_, ok := g.Find(ref(1), size, &found)
	if _, err := fmt.Fprintln(out, "found", ok); err != nil {
		return err
	}
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	held := g.End(0)
	again, looked := v.Pin()
	_, err = fmt.Fprintln(out, "held", held, "again", looked && again.End(0))
	return err
}

func TestAReaderInAnotherProcess(t *testing.T) {
	for name, stopped := range map[string]bool{"goes on": false, "is stopped": true} {
		t.Run(name, func(t *testing.T) {
			const ttl = 50 * time.Millisecond
			b := newIndex(t, 16, ttl)
			s, _ := connect(t, b)
			b.Publish(ref(1), nil, []memory.Frame{frame(1)})
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), childEnv+"=1")
			c.ExtraFiles = []*os.File{b.File(), s.File()}
			c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			in, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			pipe, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = c.Process.Kill() // it may have ended already
				_ = c.Wait()         // reports the kill signal
			})
			out := bufio.NewReader(pipe)
			hear := func(want string) {
				t.Helper()
				if got, err := out.ReadString('\n'); err != nil || got != want+"\n" {
					t.Errorf("%q, %v; want %q", got, err, want)
				}
			}
			hear("found true")
			b.Unpublish(ref(1))
			now := time.Now()
			over := b.Readers(now)
			if over == nil || over(now.Add(ttl/2)) {
				t.Fatal("the reader is not waited for")
			}
			if stopped {
				if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				if !over(now.Add(ttl)) || b.Revoked() != 1 {
					t.Errorf("a stopped reader is waited for, and revoked %d times", b.Revoked())
				}
				if err := c.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := fmt.Fprintln(in, "end"); err != nil {
				t.Fatal(err)
			}
			hear(fmt.Sprint("held ", !stopped, " again true"))
			if !over(now) {
				t.Error("it is waited for though it ended")
			}
		})
	}
}

func TestClosedSlotsDelayNothing(t *testing.T) {
	b := newIndex(t, 16, time.Hour)
	s, v := connect(t, b)
	b.Publish(ref(1), nil, []memory.Frame{frame(1)})
	g := pin(t, v)
	b.Unpublish(ref(1))
	over := b.Readers(time.Now())
	if over == nil || over(time.Now()) {
		t.Fatal("the reader is not waited for")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !over(time.Now()) || b.Readers(time.Now()) != nil {
		t.Error("a reader that left is waited for")
	}
	if _, ok := v.Pin(); ok || g.Held() || g.End(0) {
		t.Error("a slot of a connection that ended is good")
	}
	if _, ok := v.Pin(); ok {
		t.Error("a slot of a connection that ended can be taken")
	}
}

// No value that a reader writes into its slots harms the lender, and a reader can write nothing
// else.
func TestAReaderCanOnlyHarmItself(t *testing.T) {
	const ttl = time.Millisecond
	b := newIndex(t, 16, ttl)
	s, _ := connect(t, b)
	b.Publish(ref(1), nil, []memory.Frame{frame(1)})
	slots, err := unix.Mmap(int(s.File().Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		for i := range slots {
			slots[i] = byte(r.Uint32())
		}
		now := time.Now()
		if over := b.Readers(now); over != nil && !over(now.Add(ttl)) {
			t.Fatal("it is waited for longer than it may")
		}
		b.Stats()
	}
	if err := unix.Munmap(slots); err != nil {
		t.Error(err)
	}
	for name, f := range map[string]*os.File{"index": b.File(), "slots": s.File()} {
		if err := unix.Ftruncate(int(f.Fd()), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: cut short: %v", name, err)
		}
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", b.File().Fd()), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, again)
	for _, f := range []*os.File{b.File(), again} {
		if _, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
			t.Errorf("the index is mapped for writing: %v", err)
		}
		if _, err := f.WriteAt([]byte{1}, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("the index is written: %v", err)
		}
	}
}

func TestAnInvalidIndexIsRefused(t *testing.T) {
	b := newIndex(t, 16, 0)
	s, _ := connect(t, b)
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, plain)
	for _, files := range [][2]*os.File{{s.File(), s.File()}, {b.File(), b.File()}, {plain, s.File()}} {
		if _, err := objindex.Open(files[0], files[1]); !errors.Is(err, objindex.ErrNotAnIndex) {
			t.Errorf("%v", err)
		}
	}
	for _, n := range []int{1, 8, 17, 3 << 10, 1 << 30} {
		if _, err := objindex.New(n, 0); err == nil {
			t.Errorf("an index for %d objects", n)
		}
	}
}

func BenchmarkFind(b *testing.B) {
	on := newIndex(b, 0, 0)
	_, v := connect(b, on)
	const count = 1000
	for n := 1; n <= count; n++ {
		on.Publish(ref(n), make([]byte, 40), []memory.Frame{frame(n)})
	}
	b.Run("one", func(b *testing.B) {
		var found objindex.Found
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			g, _ := v.Pin()
			found.Begin(1)
			if _, ok := g.Find(ref(n%count+1), size, &found); !ok || !g.End(1) {
				b.Fatal("not found, or not held")
			}
		}
	})
	b.Run("thousand", func(b *testing.B) {
		var found objindex.Found
		b.ReportAllocs()
		for b.Loop() {
			g, _ := v.Pin()
			found.Begin(count)
			for n := 1; n <= count; n++ {
				if _, ok := g.Find(ref(n), size, &found); !ok {
					b.Fatal("not found")
				}
			}
			g.End(1)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/count, "ns/object")
	})
	b.Run("publish and unpublish", func(b *testing.B) {
		header, frames := make([]byte, 40), []memory.Frame{frame(1)}
		for n := 0; b.Loop(); n++ {
			on.Publish(ref(count+n+1), header, frames)
			on.Unpublish(ref(count + n + 1))
			on.Readers(time.Time{})
		}
	})
}
