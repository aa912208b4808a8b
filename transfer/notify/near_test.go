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
func TestNothingIsLostWhoeverLooks(t *testing.T) {
	for name, c := range map[string]struct {
		lookers, glances, rounds int
	}{
		"nobody": {0, 0, 2000}, "one in turns": {1, 20, 20_000}, "three in turns": {3, 20, 20_000}, "one always": {1, 1 << 30, 20_000},
	} {
		t.Run(name, func(t *testing.T) {
			reader, maker, peer, _ := pair(t, "unix")
			var done atomic.Bool
			var lookers sync.WaitGroup
			for _, s := range []*side{reader, maker} {
				for n := range c.lookers {
					lookers.Go(func() {
						random := rand.New(rand.NewPCG(uint64(n), 1))
						for !done.Load() {
							s.Looking(true)
							for range random.IntN(c.glances) {
								if s.Look(); done.Load() {
									break
								}
								runtime.Gosched() // there may be more goroutines than processors
							}
							s.Looking(false)
							s.Look()
						}
					})
				}
			}
			defer lookers.Wait()
			defer done.Store(true)
			for i := range c.rounds {
				reader.Await(peer, ref(i))
				reader.Flush()
				a := next(t, maker.asked)
				if a.Ref != ref(i) {
					t.Fatalf("asked for %v in place of %d", a.Ref, i)
				}
				maker.Tell(a.reader, notify.Word{Ref: a.Ref, Bytes: uint64(i), Inline: []byte("result")[:i%6]})
				maker.Flush()
				if word := next(t, reader.heard); word.Ref != ref(i) || word.Bytes != uint64(i) || string(word.Inline) != "result"[:i%6] {
					t.Fatalf("heard %v in place of %d", word, i)
				}
			}
		})
	}
}

// The last Look of a goroutine that stops polling fails while the goroutine of another connection
// holds the lock. A notification that came before the stop is heard all the same.
func TestNothingIsLostWhenTheLastLookFails(t *testing.T) {
	for name, hold := range map[string]func(t *testing.T, stop func(), tell func(), end func()){
		"the other peer wakes us": func(t *testing.T, stop, tell, _ func()) {
			t.Helper()
			stop()
			tell()
		},
		"the other peer leaves": func(t *testing.T, stop, tell, end func()) {
			t.Helper()
			tell()
			stop()
			end()
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, one, peer, _ := pair(t, "unix")
			_, other, otherPeer, conns := pair(t, "unix")
			heard, held, release := make(chan notify.Word, 2), make(chan struct{}), make(chan struct{})
			reader := notify.New(notify.Config{
				Dial: func(ctx context.Context, address string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "unix", address)
				},
				Heard: func(words []notify.Word) {
					if words[0].Ref == ref(2) {
						close(held)
						<-release // with the lock
					}
					heard <- words[0]
				},
				Handle: func() {},
			})
			t.Cleanup(reader.Close)
			reader.Await(peer, ref(1))
			reader.Await(otherPeer, ref(2))
			reader.Flush()
			at, otherAt := next(t, one.asked).reader, next(t, other.asked).reader
			reader.Looking(true)
			one.Tell(at, notify.Word{Ref: ref(1)}) // wakes nobody
			one.Flush()
			hold(t, func() { reader.Looking(false) }, func() {
				other.Tell(otherAt, notify.Word{Ref: ref(2)})
				other.Flush()
			}, func() { _ = next(t, conns).Close() })
			next(t, held)
			if reader.Look() {
				t.Error("Look got the lock; this test wants it to fail")
			}
			close(release)
			got := map[transfer.Ref]bool{next(t, heard).Ref: true, next(t, heard).Ref: true}
			if !got[ref(1)] || !got[ref(2)] {
				t.Errorf("heard %v", got)
			}
		})
	}
}

// Messages that do not fit in the ring go by the socket. Requests keep their order all the same.
func TestMoreThanARingHolds(t *testing.T) {
	reader, maker, peer, _ := pair(t, "unix")
	const tasks = 40_000 // requests for them need more room than a ring has
	for i := range tasks {
		reader.Await(peer, ref(i))
	}
	reader.Flush()
	var r *notify.Reader
	for i := range tasks {
		a := next(t, maker.asked)
		if a.Ref != ref(i) {
			t.Fatalf("asked for %v in place of %d", a.Ref, i)
		}
		r = a.reader
	}
	inline := bytes.Repeat([]byte("x"), 8<<10)
	for i := range 1000 {
		maker.Tell(r, notify.Word{Ref: ref(i), Bytes: 8 << 10, Inline: inline})
	}
	maker.Flush()
	got := make(map[transfer.Ref]bool)
	for range 1000 {
		word := next(t, reader.heard)
		if got[word.Ref] || word.Inline != nil && !bytes.Equal(word.Inline, inline) {
			t.Fatalf("heard %v", word.Ref)
		}
		got[word.Ref] = true
	}
}

// Notifications that a maker has written before its end are received.
func TestWhatADeadMakerHasSaidIsHeard(t *testing.T) {
	reader, maker, peer, conns := pair(t, "unix")
	reader.Looking(true) // and does not poll, so that no peer wakes it
	for i := range 10 {
		reader.Await(peer, ref(i))
	}
	reader.Flush()
	var r *notify.Reader
	for range 10 {
		r = next(t, maker.asked).reader
	}
	for i := range 5 {
		maker.Tell(r, notify.Word{Ref: ref(i), Bytes: 1})
	}
	maker.Flush()
	_ = next(t, conns).Close()
	never := 0
	for i := range 10 {
		word := next(t, reader.heard)
		if word.Never {
			never++
		} else if word.Ref != ref(i) {
			t.Errorf("heard %v as the %d.", word.Ref, i)
		}
	}
	if never != 5 {
		t.Errorf("%d of 5 were never made", never)
	}
	next(t, maker.left)
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
		reader := newSide(t, func(context.Context, string) (net.Conn, error) { return theirs, nil })
		reader.Await(transfer.Peer{Address: "x"}, ref(1))
		reader.Flush()
		stranger(t, conn)
		t.Cleanup(func() { _ = conn.Close() })
		return reader
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
		"a word that makes no sense": func(t *testing.T, conn *net.UnixConn) {
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
			if word := next(t, await(t, stranger).heard); !word.Never {
				t.Errorf("heard %v", word)
			}
		})
	}
	t.Run("alone", func(t *testing.T) {
		reader := await(t, func(t *testing.T, conn *net.UnixConn) {
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
		if word := next(t, reader.heard); word.Never || word.Ref != ref(1) {
			t.Errorf("heard %v", word)
		}
	})
}
