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

const patience = 5 * time.Minute

// side is a Notifier with the calls that it made.
type side struct {
	*notify.Notifier
	completed chan notify.Completion
	requested chan request
	left      chan *notify.Subscriber
}

type request struct {
	reader *notify.Subscriber
	notify.Request
}

func newSide(t *testing.T, dial func(ctx context.Context, address string) (net.Conn, error)) *side {
	t.Helper()
	s := &side{completed: make(chan notify.Completion, 100_000), requested: make(chan request, 100_000), left: make(chan *notify.Subscriber, 10)}
	s.Notifier = notify.New(notify.Config{
		Dial: dial,
		Completed: func(completions []notify.Completion) {
			for _, completion := range completions {
				s.completed <- completion
			}
		},
		Requested: func(from *notify.Subscriber, requests []notify.Request) {
			for _, a := range requests {
				s.requested <- request{from, a}
			}
		},
		Handle: func() {},
		Left:   func(gone *notify.Subscriber) { s.left <- gone },
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

// pair returns a subscriber and a publisher that are connected over a network. conns receives the
// publisher's ends.
func pair(t *testing.T, network string) (subscriber, publisher *side, peer transfer.Peer, conns chan net.Conn) {
	t.Helper()
	at := "127.0.0.1:0"
	if network == "unix" {
		at = fmt.Sprintf("@millrace-notify-%d-%d", os.Getpid(), pairs.Add(1))
	}
	listener, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	publisher = newSide(t, nil)
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
				publisher.Serve(conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(served.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	subscriber = newSide(t, func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	})
	return subscriber, publisher, transfer.Peer{Worker: 2, Name: "b", Address: listener.Addr().String()}, conns
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
	subscriber, publisher, peer, _ := pair(t, network)
	for task := range 5 {
		subscriber.Subscribe(peer, ref(task))
	}
	subscriber.Unsubscribe(peer, ref(3))
	subscriber.Flush()
	var requests []request
	for len(requests) < 6 {
		requests = append(requests, next(t, publisher.requested))
	}
	if last := requests[5]; last.Ref != ref(3) || !last.Cancel || requests[0].Cancel || requests[4].Ref != ref(4) {
		t.Fatalf("asked %v", requests)
	}
	s := requests[0].reader
	publisher.Publish(s, notify.Completion{Ref: ref(3), Bytes: 1}) // this subscription was cancelled before
	publisher.Publish(s, notify.Completion{Ref: ref(9), Bytes: 1}) // no such subscription
	publisher.Publish(s, notify.Completion{Ref: ref(1), Bytes: 5, Inline: []byte("hello")})
	publisher.Publish(s, notify.Completion{Ref: ref(1), Bytes: 5, Inline: []byte("again")})
	publisher.Publish(s, notify.Completion{Ref: ref(0), Bytes: 1 << 40})
	publisher.Publish(s, notify.Completion{Ref: ref(2), Unavailable: true})
	publisher.Publish(s, notify.Completion{Ref: ref(4), Bytes: 1 << 20, Inline: make([]byte, 1<<20)})
	publisher.Flush()
	for i, want := range []notify.Completion{
		{Ref: ref(1), Bytes: 5, Inline: []byte("hello")}, {Ref: ref(0), Bytes: 1 << 40}, {Ref: ref(2), Unavailable: true}, {Ref: ref(4), Bytes: 1 << 20},
	} {
		got := next(t, subscriber.completed)
		if got.Ref != want.Ref || got.Bytes != want.Bytes || got.Unavailable != want.Unavailable || !bytes.Equal(got.Inline, want.Inline) {
			t.Errorf("word %d is %v, not %v", i, got, want)
		}
	}
	subscriber.Close()
	if left := next(t, publisher.left); left != s {
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
	subscriber, publisher, peer, conns := pair(t, network)
	for round := range 3 {
		subscriber.Subscribe(peer, ref(round))
		subscriber.Subscribe(peer, ref(100+round))
		subscriber.Flush()
		a := next(t, publisher.requested)
		next(t, publisher.requested)
		publisher.Publish(a.reader, notify.Completion{Ref: ref(round), Bytes: 7})
		publisher.Flush()
		if completion := next(t, subscriber.completed); completion.Ref != ref(round) || completion.Unavailable {
			t.Fatalf("received %v", completion)
		}
		_ = next(t, conns).Close()
		if completion := next(t, subscriber.completed); completion.Ref != ref(100+round) || !completion.Unavailable {
			t.Fatalf("received %v", completion)
		}
		next(t, publisher.left)
		publisher.Publish(a.reader, notify.Completion{Ref: ref(100 + round)}) // no effect: it is closed
		publisher.Flush()
	}
}

func TestUnreachablePeersFailSubscriptions(t *testing.T) {
	subscriber := newSide(t, func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody there") })
	for task := range 100 {
		subscriber.Subscribe(transfer.Peer{Address: "x"}, ref(task))
		subscriber.Flush()
	}
	for range 100 {
		if completion := next(t, subscriber.completed); !completion.Unavailable {
			t.Errorf("received %v", completion)
		}
	}
}

// A reader that does not read delays no other goroutine. Later it receives all that fits, in order.
func TestSlowReadersHoldNobodyUp(t *testing.T) {
	publisher := newSide(t, nil)
	here, there := net.Pipe()
	var served sync.WaitGroup
	served.Go(func() { publisher.Serve(there) })
	defer served.Wait()
	const tasks = 2000
	slow := newSide(t, func(context.Context, string) (net.Conn, error) { return here, nil })
	for task := range tasks {
		slow.Subscribe(transfer.Peer{Address: "x"}, ref(task))
	}
	slow.Flush()
	first := next(t, publisher.requested)
	for range tasks - 1 {
		next(t, publisher.requested)
	}
	inline := make([]byte, 4<<10)
	for task := range tasks {
		publisher.Publish(first.reader, notify.Completion{Ref: ref(task), Bytes: 4 << 10, Inline: inline})
	}
	publisher.Flush()
	without := 0
	for task := range tasks {
		completion := next(t, slow.completed)
		if completion.Ref != ref(task) || completion.Bytes != 4<<10 {
			t.Fatalf("word %d is of %v", task, completion.Ref)
		}
		if completion.Inline == nil {
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
	subscriber := newSide(t, func(context.Context, string) (net.Conn, error) { return here, nil })
	subscriber.Subscribe(transfer.Peer{Address: "x"}, ref(1))
	subscriber.Flush()
	go func() {
		_, _ = there.Read(make([]byte, 100))
		_, _ = there.Write(bytes.Repeat([]byte{0xff}, 25))
	}()
	if completion := next(t, subscriber.completed); !completion.Unavailable {
		t.Errorf("received %v", completion)
	}
	publisher := newSide(t, nil)
	here, there = net.Pipe()
	go func() { _, _ = here.Write(bytes.Repeat([]byte{0xff}, 13)) }()
	publisher.Serve(there)
	next(t, publisher.left)
}
