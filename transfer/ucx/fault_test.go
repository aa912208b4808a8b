//go:build cgo && linux

package ucx_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

func refOf(task int) transfer.Ref { return transfer.Ref{Task: idOf(task), Generation: 1} }

// stamped returns content that names its object.
func stamped(task, n int) []byte {
	return bytes.Repeat([]byte{byte(task), 0xa5, byte(task >> 8)}, n/3+1)[:n]
}

// within fails the test if f takes longer than limit.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	begun := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		t.Logf("%s took %v", what, time.Since(begun))
	case <-time.After(limit):
		t.Fatalf("%s did not end within %v", what, limit)
	}
}

// looped fetches the same object again and again until a fetch fails.
func looped(t *testing.T, r *reader, peer transfer.Peer, ref transfer.Ref, want []byte, first func()) error {
	t.Helper()
	for n := 0; ; n++ {
		r.room.Reset()
		sink := transfertest.NewSinkIn(r.room)
		err := r.path.Fetch(t.Context(), peer, []transfer.Ref{ref}, sink)
		_, frames, done, objectErr := sink.Result(0)
		if done && objectErr == nil && !bytes.Equal(frames[0], want) {
			t.Error("wrong bytes were delivered as valid")
		}
		if err == nil {
			err = objectErr
		}
		if err != nil {
			return err
		}
		if n == 2 {
			first()
		}
	}
}

func TestSourceIsKilledInTheMiddle(t *testing.T) {
	eachPair(t, fewPlaces, func(t *testing.T, p pair) {
		t.Helper()
		size := 200 << 20
		if elsewhere != nil {
			size = 25 << 20 // it takes seconds there, too
		}
		want := stamped(1, size)
		objects := newObjects(t)
		objects.Put(refOf(1), "x", want)
		c := startChild(t, p.order(), objects)
		r := newReaderAt(t, p, transfertest.Patience)
		var err error
		within(t, transfertest.Patience, "the end", func() {
			err = looped(t, r, c.peer, refOf(1), want, func() { go c.kill() })
		})
		if !errors.Is(err, transfer.ErrPeerLost) {
			t.Errorf("got %v", err)
		}
	})
}

// TestSourceIsKilledAtConnect uses the transports that workers use by default, but not TCP. UCX
// sometimes crashes its process if the other process dies during a wire-up over TCP (ADR 12), so
// workers do not connect over TCP if that has no advantage.
func TestSourceIsKilledAtConnect(t *testing.T) {
	eachPair(t, fewPlaces, func(t *testing.T, p pair) {
		t.Helper()
		if p.tls != transports["tcp"] {
			killedAtConnect(t, p)
		}
	})
	if elsewhere == nil {
		t.Run("what there is", func(t *testing.T) { killedAtConnect(t, pair{}) })
	}
}

func killedAtConnect(t *testing.T, p pair) {
	t.Helper()
	r := newReaderAt(t, p, 3*time.Second)
	for delay := time.Duration(0); delay < 12*time.Millisecond; delay += 2 * time.Millisecond {
		objects := newObjects(t)
		objects.Put(refOf(1), "x", stamped(1, 1<<20))
		c := startChild(t, p.order(), objects)
		r.room.Reset()
		sink := transfertest.NewSinkIn(r.room)
		time.AfterFunc(delay, c.kill)
		within(t, transfertest.Patience, fmt.Sprint("a fetch from a source that dies after ", delay), func() {
			err := r.path.Fetch(t.Context(), c.peer, []transfer.Ref{refOf(1)}, sink)
			if err != nil && !errors.Is(err, transfer.ErrPeerLost) && !errors.Is(err, transfer.ErrStalled) && !errors.Is(err, ucx.ErrNoConnection) {
				t.Errorf("got %v", err)
			}
		})
		c.kill()
		if _, frames, done, err := sink.Result(0); done && err == nil && !bytes.Equal(frames[0], stamped(1, 1<<20)) {
			t.Error("wrong bytes were delivered as valid")
		}
	}
}

func TestDeathOfAnIdlePeerIsNoticed(t *testing.T) {
	eachPair(t, fewPlaces, func(t *testing.T, p pair) {
		t.Helper()
		c := startChild(t, p.order(), newObjects(t))
		r := newReaderAt(t, p, transfertest.Patience)
		if _, err := r.path.Connect(t.Context(), c.peer); err != nil {
			t.Fatal(err)
		}
		c.kill()
		within(t, transfertest.Patience, "the notice", func() {
			for r.path.Connections() > 0 {
				select {
				case <-time.After(5 * time.Millisecond):
				case <-t.Context().Done():
					return
				}
			}
		})
	})
}

func TestStoppedSourceEndsByStallAndByDeadline(t *testing.T) {
	eachPair(t, fewPlaces, func(t *testing.T, p pair) {
		t.Helper()
		want := stamped(1, 32<<20)
		objects := newObjects(t)
		objects.Put(refOf(1), "x", want)
		c := startChild(t, p.order(), objects)
		patient, impatient := newReaderAt(t, p, transfertest.Patience), newReaderAt(t, p, time.Second)
		fetch := func(ctx context.Context, r *reader) error {
			r.room.Reset()
			sink := transfertest.NewSinkIn(r.room)
			err := r.path.Fetch(ctx, c.peer, []transfer.Ref{refOf(1)}, sink)
			_, frames, done, objectErr := sink.Result(0)
			if done && objectErr == nil && !bytes.Equal(frames[0], want) {
				t.Error("wrong bytes were delivered as valid")
			}
			return errors.Join(err, objectErr)
		}
		// comes fetches until the object has arrived; some attempts take too long.
		comes := func(r *reader) {
			for {
				err := fetch(t.Context(), r)
				if err == nil {
					return
				}
				if !errors.Is(err, transfer.ErrStalled) && !errors.Is(err, transfer.ErrPeerLost) {
					t.Errorf("while it is not stopped: %v", err)
					return
				}
			}
		}
		if err := fetch(t.Context(), patient); err != nil {
			t.Fatal(err)
		}
		within(t, transfertest.Patience, "connecting", func() { comes(impatient) })
		if err := c.process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		within(t, transfertest.Patience/2, "the stall", func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := fetch(ctx, patient); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("deadline: %v", err)
			}
			if err := fetch(t.Context(), impatient); !errors.Is(err, transfer.ErrStalled) {
				t.Errorf("stall: %v", err)
			}
		})
		if err := c.process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		within(t, transfertest.Patience, "coming back", func() { comes(impatient) })
		for _, r := range []*reader{patient, impatient} {
			allSlotsAreFree(t, r.context)
		}
	})
}

// reserved returns an address at which a child may listen; no other process is given its port in
// the meantime.
func reserved(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	// Two bound sockets may share a port if both set SO_REUSEADDR and one does not listen.
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

func TestRestartOnTheSameAddressIsReadAfresh(t *testing.T) {
	eachPair(t, fewPlaces, func(t *testing.T, p pair) {
		t.Helper()
		r := newReaderAt(t, p, 10*time.Second) // a fetch that stalls is tried again
		address, lives := "", 2
		if elsewhere == nil {
			address, lives = reserved(t), 3
		}
		for life := 1; life <= lives; life++ {
			want := stamped(life, 8<<20)
			objects := newObjects(t)
			ref := transfer.Ref{Task: idOf(1), Generation: ids.Attempt(life)}
			objects.Put(ref, "x", want)
			order := p.order()
			order.Listen = address
			c := startChild(t, order, objects)
			address = c.peer.Address
			var last error
			within(t, transfertest.Patience, "reading it", func() {
				for {
					r.room.Reset()
					sink := transfertest.NewSinkIn(r.room)
					before := transfer.Ref{Task: ref.Task, Generation: ref.Generation - 1}
					refs := []transfer.Ref{ref, {Task: ref.Task, Generation: ref.Generation + 1}, before}[:min(life+1, 3)]
					last = r.path.Fetch(t.Context(), c.peer, refs, sink)
					_, frames, done, objectErr := sink.Result(0)
					if last == nil && done && objectErr == nil {
						if !bytes.Equal(frames[0], want) {
							t.Errorf("life %d: another life's bytes were delivered as valid", life)
						}
						for i, other := range refs[1:] {
							if _, _, done, err := sink.Result(i + 1); !done || !errors.Is(err, transfer.ErrNotHere) {
								t.Errorf("life %d: %s, another generation: %v", life, other, err)
							}
						}
						return
					}
				}
			})
			c.kill()
		}
	})
}

func TestLeaseThatEndedMakesTheObjectInvalid(t *testing.T) {
	eachPair(t, fewPlaces, func(t *testing.T, p pair) {
		t.Helper()
		objects := newObjects(t)
		objects.Put(refOf(1), "x", stamped(1, 4<<20))
		objects.Put(refOf(2), "x", stamped(2, 100))
		c := startChild(t, p.order(), objects)
		r := newReaderAt(t, p, transfertest.Patience)
		sink := transfertest.NewSinkIn(r.room)
		sink.PlaceHook = func(_ context.Context, index int, _ transfer.Head) error {
			if index == 0 {
				objects.Revoke()
			}
			return nil
		}
		if err := r.path.Fetch(t.Context(), c.peer, []transfer.Ref{refOf(1), refOf(2)}, sink); err != nil {
			t.Fatal(err)
		}
		if _, _, done, err := sink.Result(0); !done || !errors.Is(err, transfer.ErrPeerLost) {
			t.Errorf("%v, %v", done, err)
		}
		// From host memory to host memory, the small one was sent with its description.
		inline := p.source == onHost && p.reader == onHost
		if _, _, done, err := sink.Result(1); !done || (err == nil) != inline || err != nil && !errors.Is(err, transfer.ErrPeerLost) {
			t.Errorf("the small one: %v, %v", done, err)
		}
	})
}

func TestRegionsOutsideOfTheSlabAreRefused(t *testing.T) {
	objects := newObjects(t)
	objects.Put(refOf(1), "x", stamped(1, 4<<20))
	c := startChild(t, childOrder{TLS: transports["cma"]}, objects)
	r := newReader(t, transports["cma"], transfertest.Patience)
	sink := transfertest.NewSink()
	if err := r.path.Fetch(t.Context(), c.peer, []transfer.Ref{refOf(1)}, sink); err != nil {
		t.Fatal(err)
	}
	if _, _, done, err := sink.Result(0); !done || !errors.Is(err, ucx.ErrNoConnection) {
		t.Errorf("%v, %v", done, err)
	}
	within(t, transfertest.Patience, "giving the lease back", func() {
		for objects.Leases() > 0 {
			<-time.After(time.Millisecond)
		}
	})
}

// readAsChild fetches object 1 again and again until it is killed.
func readAsChild(order childOrder) error {
	slab, err := openSlab(os.NewFile(3, "slab"), order.SlabBytes)
	if err != nil {
		return err
	}
	space, err := childSpace(order, slab, memory.Identity{Nonce: 1})
	if err != nil {
		return err
	}
	c, err := ucx.Open(at(order.Place, ucx.Config{Library: libraryPath(), TLS: order.TLS, NetDevices: "lo", Space: space}))
	if err != nil {
		return err
	}
	wire := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience})
	path := ucx.NewPath(c, ucx.PathConfig{Connect: wire.Connect, StallTimeout: transfertest.Patience})
	room := transfertest.NewRoom(space)
	for n := 0; ; n++ {
		room.Reset()
		sink := transfertest.NewSinkIn(room)
		if err := path.Fetch(context.Background(), transfer.Peer{Worker: 1, Name: "source", Address: order.Read}, []transfer.Ref{refOf(1)}, sink); err != nil {
			return err
		}
		if n == 2 {
			fmt.Println("reading")
		}
	}
}

// startReading starts a process that fetches object 1 from an address again and again, until it is
// killed or the test ends. It returns when some fetches have succeeded.
func startReading(t *testing.T, p pair, address string) (process *os.Process, kill func()) {
	t.Helper()
	if p.reader != onHost {
		if _, err := driver(); err != nil { // the child uses it, too
			t.Fatal(err)
		}
	}
	space := newSlab(t, slabBytes)
	text, err := json.Marshal(childOrder{TLS: p.tls, Place: p.reader, Read: address, SlabBytes: slabBytes})
	if err != nil {
		t.Fatal(err)
	}
	if err := descriptors.CloseOnExec(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.ExtraFiles = []*os.File{space.file}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // ends with an error, because it was killed
	})
	t.Cleanup(kill)
	var word string
	if _, err := fmt.Fscanln(out, &word); err != nil {
		t.Fatalf("the reader did not say that it reads: %v", err)
	}
	return cmd.Process, kill
}

func TestLeasesOfAKilledReaderComeBack(t *testing.T) {
	eachPair(t, fewPlaces, func(t *testing.T, p pair) {
		t.Helper()
		objects := transfertest.NewObjectsIn(transfertest.NewRoom(newSpace(t, p.source)))
		objects.Put(refOf(1), "x", stamped(1, 100<<20))
		c, err := ucx.Open(at(p.source, ucx.Config{Library: library(t), TLS: p.tls, NetDevices: "lo", Space: objects.Room().Space(), Source: objects, SourceIsQuick: true}))
		if err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(rawframe.ServerOptions()...)
		(&grpcpath.Server{OneSided: c.Accept}).Register(server)
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		t.Cleanup(func() {
			server.Stop()
			if err := errors.Join(<-served, c.Close()); err != nil {
				t.Error(err)
			}
		})
		_, kill := startReading(t, p, listener.Addr().String())
		kill()
		within(t, transfertest.Patience, "the return of the leases", func() {
			for objects.Leases() > 0 || c.Connections() > 0 {
				<-time.After(time.Millisecond)
			}
		})
	})
}
