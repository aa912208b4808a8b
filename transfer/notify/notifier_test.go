package notify_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
)

const patience = 30 * time.Second

// side is a herald with the calls that it made.
type side struct {
	*notify.Herald
	heard chan notify.Word
	asked chan ask
	left  chan *notify.Reader
}

type ask struct {
	reader *notify.Reader
	notify.Ask
}

func newSide(t *testing.T, dial func(ctx context.Context, address string) (net.Conn, error)) *side {
	t.Helper()
	s := &side{heard: make(chan notify.Word, 100_000), asked: make(chan ask, 100_000), left: make(chan *notify.Reader, 10)}
	s.Herald = notify.New(notify.Config{
		Dial: dial,
		Heard: func(words []notify.Word) {
			for _, word := range words {
				s.heard <- word
			}
		},
		Asked: func(r *notify.Reader, asks []notify.Ask) {
			for _, a := range asks {
				s.asked <- ask{r, a}
			}
		},
		Handle: func() {},
		Left:   func(r *notify.Reader) { s.left <- r },
	})
	t.Cleanup(s.Close)
	return s
}

// networks are the two kinds of connections: between hosts, and within a host.
var networks = []string{"tcp", "unix"}

// eachNetwork runs a test on each of them.
func eachNetwork(t *testing.T, test func(t *testing.T, network string)) {
	t.Helper()
	for _, network := range networks {
		t.Run(network, func(t *testing.T) { test(t, network) })
	}
}

// pair returns a reader and a maker that are connected over a network. conns receives the maker's
// ends.
func pair(t *testing.T, network string) (reader, maker *side, peer transfer.Peer, conns chan net.Conn) {
	t.Helper()
	at := "127.0.0.1:0"
	if network == "unix" {
		at = fmt.Sprintf("@millrace-herald-%d-%d", os.Getpid(), pairs.Add(1))
	}
	listener, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	maker = newSide(t, nil)
	conns = make(chan net.Conn, 10)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns <- conn
			served.Go(func() {
				maker.Serve(conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(served.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	reader = newSide(t, func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	})
	return reader, maker, transfer.Peer{Worker: 2, Name: "b", Address: listener.Addr().String()}, conns
}

// pairs makes the addresses of pairs unique.
var pairs atomic.Int64

func ref(task int) transfer.Ref { return transfer.Ref{Task: ids.TaskID(task), Generation: 3} }

func next[T any](t *testing.T, c chan T) (x T) {
	t.Helper()
	select {
	case x = <-c:
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	return x
}

func TestWordsComeToWhoAsked(t *testing.T) { eachNetwork(t, wordsComeToWhoAsked) }

func wordsComeToWhoAsked(t *testing.T, network string) {
	t.Helper()
	reader, maker, peer, _ := pair(t, network)
	for task := range 5 {
		reader.Await(peer, ref(task))
	}
	reader.Unawait(peer, ref(3))
	reader.Flush()
	var asks []ask
	for len(asks) < 6 {
		asks = append(asks, next(t, maker.asked))
	}
	if last := asks[5]; last.Ref != ref(3) || !last.End || asks[0].End || asks[4].Ref != ref(4) {
		t.Fatalf("asked %v", asks)
	}
	r := asks[0].reader
	maker.Tell(r, notify.Word{Ref: ref(3), Bytes: 1}) // this subscription was cancelled before
	maker.Tell(r, notify.Word{Ref: ref(9), Bytes: 1}) // no such subscription
	maker.Tell(r, notify.Word{Ref: ref(1), Bytes: 5, Inline: []byte("hello")})
	maker.Tell(r, notify.Word{Ref: ref(1), Bytes: 5, Inline: []byte("again")})
	maker.Tell(r, notify.Word{Ref: ref(0), Bytes: 1 << 40})
	maker.Tell(r, notify.Word{Ref: ref(2), Never: true})
	maker.Tell(r, notify.Word{Ref: ref(4), Bytes: 1 << 20, Inline: make([]byte, 1<<20)})
	maker.Flush()
	for i, want := range []notify.Word{
		{Ref: ref(1), Bytes: 5, Inline: []byte("hello")}, {Ref: ref(0), Bytes: 1 << 40}, {Ref: ref(2), Never: true}, {Ref: ref(4), Bytes: 1 << 20},
	} {
		got := next(t, reader.heard)
		if got.Ref != want.Ref || got.Bytes != want.Bytes || got.Never != want.Never || !bytes.Equal(got.Inline, want.Inline) {
			t.Errorf("word %d is %v, not %v", i, got, want)
		}
	}
	reader.Close()
	if left := next(t, maker.left); left != r {
		t.Error("another reader left")
	}
}

// A connection that ends fails the open subscriptions on it. The next subscription opens another
// connection.
func TestBrokenConnectionsFailWhatWasAwaited(t *testing.T) {
	eachNetwork(t, brokenConnectionsFailWhatWasAwaited)
}

func brokenConnectionsFailWhatWasAwaited(t *testing.T, network string) {
	t.Helper()
	reader, maker, peer, conns := pair(t, network)
	for round := range 3 {
		reader.Await(peer, ref(round))
		reader.Await(peer, ref(100+round))
		reader.Flush()
		a := next(t, maker.asked)
		next(t, maker.asked)
		maker.Tell(a.reader, notify.Word{Ref: ref(round), Bytes: 7})
		maker.Flush()
		if word := next(t, reader.heard); word.Ref != ref(round) || word.Never {
			t.Fatalf("heard %v", word)
		}
		_ = next(t, conns).Close()
		if word := next(t, reader.heard); word.Ref != ref(100+round) || !word.Never {
			t.Fatalf("heard %v", word)
		}
		next(t, maker.left)
		maker.Tell(a.reader, notify.Word{Ref: ref(100 + round)}) // no effect: it is closed
		maker.Flush()
	}
}

func TestWhoCannotBeReachedNeverTells(t *testing.T) {
	reader := newSide(t, func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody there") })
	for task := range 100 {
		reader.Await(transfer.Peer{Address: "x"}, ref(task))
		reader.Flush()
	}
	for range 100 {
		if word := next(t, reader.heard); !word.Never {
			t.Errorf("heard %v", word)
		}
	}
}

// A reader that does not read delays no other goroutine. Later it receives all that fits, in order.
func TestSlowReadersHoldNobodyUp(t *testing.T) {
	maker := newSide(t, nil)
	here, there := net.Pipe()
	var served sync.WaitGroup
	served.Go(func() { maker.Serve(there) })
	defer served.Wait()
	const tasks = 2000
	slow := newSide(t, func(context.Context, string) (net.Conn, error) { return here, nil })
	for task := range tasks {
		slow.Await(transfer.Peer{Address: "x"}, ref(task))
	}
	slow.Flush()
	first := next(t, maker.asked)
	for range tasks - 1 {
		next(t, maker.asked)
	}
	inline := make([]byte, 4<<10)
	for task := range tasks {
		maker.Tell(first.reader, notify.Word{Ref: ref(task), Bytes: 4 << 10, Inline: inline})
	}
	maker.Flush()
	without := 0
	for task := range tasks {
		word := next(t, slow.heard)
		if word.Ref != ref(task) || word.Bytes != 4<<10 {
			t.Fatalf("word %d is of %v", task, word.Ref)
		}
		if word.Inline == nil {
			without++
		}
	}
	if without == 0 || without == tasks {
		t.Errorf("%d of %d came without what they told of: a backlog ends that", without, tasks)
	}
	slow.Close()
}

// A peer that sends malformed data is disconnected.
func TestNonsenseEndsAConnection(t *testing.T) {
	here, there := net.Pipe()
	reader := newSide(t, func(context.Context, string) (net.Conn, error) { return here, nil })
	reader.Await(transfer.Peer{Address: "x"}, ref(1))
	reader.Flush()
	go func() {
		_, _ = there.Read(make([]byte, 100))
		_, _ = there.Write(bytes.Repeat([]byte{0xff}, 25))
	}()
	if word := next(t, reader.heard); !word.Never {
		t.Errorf("heard %v", word)
	}
	maker := newSide(t, nil)
	here, there = net.Pipe()
	go func() { _, _ = here.Write(bytes.Repeat([]byte{0xff}, 13)) }()
	maker.Serve(there)
	next(t, maker.left)
}
