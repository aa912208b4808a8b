package notify_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/transfer/ring"
)

// Every message arrives, whether a goroutine polls, none does, or that changes all the time, and
// although no later message would push it along.
func TestEveryMessageArrivesWithAnyPollers(t *testing.T) {
	for name, c := range map[string]struct {
		pollers, polls, rounds int
	}{
		"nobody": {0, 0, 2000}, "one in turns": {1, 20, 20_000}, "three in turns": {3, 20, 20_000}, "one always": {1, 1 << 30, 20_000},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				c.rounds /= 4
			}
			subscriber, publisher, peer, _ := pair(t, "unix")
			var done atomic.Bool
			var pollers sync.WaitGroup
			for _, s := range []*side{subscriber, publisher} {
				for n := range c.pollers {
					pollers.Go(func() {
						random := rand.New(rand.NewPCG(uint64(n), 1))
						for !done.Load() {
							s.SetPolling(true)
							for range random.IntN(c.polls) {
								if s.Poll(); done.Load() {
									break
								}
								runtime.Gosched() // there may be more goroutines than processors
							}
							s.SetPolling(false)
							s.Poll()
						}
					})
				}
			}
			defer pollers.Wait()
			defer done.Store(true)
			for i := range c.rounds {
				subscriber.Subscribe(peer, ref(i))
				subscriber.Flush()
				a := next(t, publisher.requested)
				if a.Ref != ref(i) {
					t.Fatalf("asked for %v in place of %d", a.Ref, i)
				}
				publisher.Publish(a.reader, notify.Completion{Ref: a.Ref, Bytes: uint64(i), Inline: []byte("result")[:i%6]})
				publisher.Flush()
				if completion := next(t, subscriber.completed); completion.Ref != ref(i) || completion.Bytes != uint64(i) || string(completion.Inline) != "result"[:i%6] {
					t.Fatalf("received %v in place of %d", completion, i)
				}
			}
		})
	}
}

// The last Look of a goroutine that stops polling fails while the goroutine of another connection
// holds the lock. A notification that came before the stop is received all the same.
func TestNothingIsLostWhenTheLastPollFails(t *testing.T) {
	for name, hold := range map[string]func(t *testing.T, stop func(), publish func(), end func()){
		"the other peer wakes us": func(t *testing.T, stop, publish, _ func()) {
			t.Helper()
			stop()
			publish()
		},
		"the other peer leaves": func(t *testing.T, stop, publish, end func()) {
			t.Helper()
			publish()
			stop()
			end()
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, one, peer, _ := pair(t, "unix")
			_, other, otherPeer, conns := pair(t, "unix")
			completed, held, release := make(chan notify.Completion, 2), make(chan struct{}), make(chan struct{})
			subscriber := notify.New(notify.Config{
				Dial: func(ctx context.Context, address string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "unix", address)
				},
				Completed: func(completions []notify.Completion) {
					if completions[0].Ref == ref(2) {
						close(held)
						<-release // with the lock
					}
					completed <- completions[0]
				},
				Handle: func() {},
			})
			t.Cleanup(subscriber.Close)
			subscriber.Subscribe(peer, ref(1))
			subscriber.Subscribe(otherPeer, ref(2))
			subscriber.Flush()
			at, otherAt := next(t, one.requested).reader, next(t, other.requested).reader
			subscriber.SetPolling(true)
			one.Publish(at, notify.Completion{Ref: ref(1)}) // wakes nobody
			one.Flush()
			hold(t, func() { subscriber.SetPolling(false) }, func() {
				other.Publish(otherAt, notify.Completion{Ref: ref(2)})
				other.Flush()
			}, func() { _ = next(t, conns).Close() })
			next(t, held)
			if subscriber.Poll() {
				t.Error("Poll got the lock; this test wants it to fail")
			}
			close(release)
			got := map[transfer.Ref]bool{next(t, completed).Ref: true, next(t, completed).Ref: true}
			if !got[ref(1)] || !got[ref(2)] {
				t.Errorf("received %v", got)
			}
		})
	}
}

// Messages that do not fit in the ring go by the socket. Requests keep their order all the same.
func TestMoreThanARingHolds(t *testing.T) {
	subscriber, publisher, peer, _ := pair(t, "unix")
	const tasks = 40_000 // requests for them need more room than a ring has
	for i := range tasks {
		subscriber.Subscribe(peer, ref(i))
	}
	subscriber.Flush()
	var s *notify.Subscriber
	for i := range tasks {
		a := next(t, publisher.requested)
		if a.Ref != ref(i) {
			t.Fatalf("asked for %v in place of %d", a.Ref, i)
		}
		s = a.reader
	}
	inline := bytes.Repeat([]byte("x"), 8<<10)
	for i := range 1000 {
		publisher.Publish(s, notify.Completion{Ref: ref(i), Bytes: 8 << 10, Inline: inline})
	}
	publisher.Flush()
	got := make(map[transfer.Ref]bool)
	for range 1000 {
		completion := next(t, subscriber.completed)
		if got[completion.Ref] || completion.Inline != nil && !bytes.Equal(completion.Inline, inline) {
			t.Fatalf("received %v", completion.Ref)
		}
		got[completion.Ref] = true
	}
}

// Notifications that a publisher has written before its end are received.
func TestNotificationsOfADeadPublisherAreReceived(t *testing.T) {
	subscriber, publisher, peer, conns := pair(t, "unix")
	subscriber.SetPolling(true) // and does not poll, so that no peer wakes it
	for i := range 10 {
		subscriber.Subscribe(peer, ref(i))
	}
	subscriber.Flush()
	var s *notify.Subscriber
	for range 10 {
		s = next(t, publisher.requested).reader
	}
	for i := range 5 {
		publisher.Publish(s, notify.Completion{Ref: ref(i), Bytes: 1})
	}
	publisher.Flush()
	_ = next(t, conns).Close()
	never := 0
	for i := range 10 {
		completion := next(t, subscriber.completed)
		if completion.Unavailable {
			never++
		} else if completion.Ref != ref(i) {
			t.Errorf("received %v as the %d.", completion.Ref, i)
		}
	}
	if never != 5 {
		t.Errorf("%d of 5 were unavailable", never)
	}
	next(t, publisher.left)
}

// A peer that writes malformed data into the ring, passes a wrong file or none, or sends a wrong
// first byte is disconnected or used without rings.
func TestStrangersHarmNobody(t *testing.T) {
	await := func(t *testing.T, stranger func(t *testing.T, conn *net.UnixConn)) *side {
		t.Helper()
		conn, file, err := descriptors.Pair()
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := net.FileConn(file)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		subscriber := newSide(t, func(context.Context, string) (net.Conn, error) { return theirs, nil })
		subscriber.Subscribe(transfer.Peer{Address: "x"}, ref(1))
		subscriber.Flush()
		stranger(t, conn)
		t.Cleanup(func() { _ = conn.Close() })
		return subscriber
	}
	pass := func(t *testing.T, conn *net.UnixConn, kind byte, files ...*os.File) {
		t.Helper()
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		if _, _, err := conn.WriteMsgUnix([]byte{kind}, rights, nil); err != nil {
			t.Fatal(err)
		}
	}
	made := func(t *testing.T) *os.File {
		t.Helper()
		f, err := ring.Make()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	for name, stranger := range map[string]func(t *testing.T, conn *net.UnixConn){
		"another kind": func(t *testing.T, conn *net.UnixConn) {
			t.Helper()
			pass(t, conn, 'X', made(t))
		},
		"no file": func(t *testing.T, conn *net.UnixConn) {
			t.Helper()
			pass(t, conn, 'R')
		},
		"two files": func(t *testing.T, conn *net.UnixConn) {
			t.Helper()
			pass(t, conn, 'R', made(t), made(t))
		},
		"another file": func(t *testing.T, conn *net.UnixConn) {
			t.Helper()
			f, err := os.Create(t.TempDir() + "/file")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			pass(t, conn, 'R', f)
		},
		"a malformed message": func(t *testing.T, conn *net.UnixConn) {
			t.Helper()
			f := made(t)
			end, err := ring.Open(f, true)
			if err != nil {
				t.Fatal(err)
			}
			end.Out.Put([]byte("nonsense"))
			if err := end.Close(); err != nil {
				t.Fatal(err)
			}
			pass(t, conn, 'R', f)
		},
		"a ring that makes no sense": func(t *testing.T, conn *net.UnixConn) {
			t.Helper()
			f := made(t)
			if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, 3000), 8); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, 3000), 4096+256<<10); err != nil {
				t.Fatal(err)
			}
			pass(t, conn, 'R', f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if completion := next(t, await(t, stranger).completed); !completion.Unavailable {
				t.Errorf("received %v", completion)
			}
		})
	}
	t.Run("alone", func(t *testing.T) {
		subscriber := await(t, func(t *testing.T, conn *net.UnixConn) {
			t.Helper()
			pass(t, conn, 'N')
			if n, err := conn.Read(make([]byte, 100)); n != 13 || err != nil {
				t.Fatal(n, err)
			}
			record := append([]byte{1, 1, 0, 0, 0, 0, 0, 0, 0, 3}, make([]byte, 15)...)
			if _, err := conn.Write(record); err != nil {
				t.Fatal(err)
			}
		})
		if completion := next(t, subscriber.completed); completion.Unavailable || completion.Ref != ref(1) {
			t.Errorf("received %v", completion)
		}
	})
}
