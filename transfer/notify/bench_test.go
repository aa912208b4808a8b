package notify_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
)

// publisherVariable makes this test binary the other side of BenchmarkRoundTrip. Its value says the
// network, whether the process polls the ring, for how long connections poll, and the address.
const publisherVariable = "MILLRACE_TEST_PUBLISHER"

func TestMain(m *testing.M) {
	if how := os.Getenv(publisherVariable); how != "" {
		publish(how)
		return
	}
	goleak.VerifyTestMain(leaktest.Patient{M: m})
}

// publish runs a publisher that reports every requested object as made. It ends with its parent.
func publish(how string) {
	network, rest, _ := strings.Cut(how, " ")
	var polls bool
	var spin time.Duration
	if _, err := fmt.Sscan(rest, &polls, (*int64)(&spin)); err != nil {
		panic(err)
	}
	at := "127.0.0.1:0"
	if network == "unix" {
		at = fmt.Sprintf("@millrace-notify-%d", os.Getpid())
	}
	listener, err := net.Listen(network, at)
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr())
	var n *notify.Notifier
	var mu sync.Mutex // guards asked, and is held while answering
	var requested []request
	handle := func() {
		mu.Lock()
		defer mu.Unlock()
		for _, a := range requested {
			n.Publish(a.reader, notify.Completion{Ref: a.Ref, Bytes: 16, Inline: []byte("sixteen bytes...")})
		}
		requested = requested[:0]
		n.Flush()
	}
	n = notify.New(notify.Config{
		Requested: func(s *notify.Subscriber, requests []notify.Request) {
			mu.Lock()
			defer mu.Unlock()
			for _, a := range requests {
				requested = append(requested, request{s, a})
			}
		},
		Handle: handle,
		Left:   func(*notify.Subscriber) { os.Exit(0) },
	})
	if polls {
		n.SetPolling(true)
		go func() {
			for {
				if n.Poll() {
					handle()
				}
			}
		}()
	}
	conn, err := listener.Accept()
	if err != nil {
		panic(err)
	}
	n.Serve(conn)
}

// BenchmarkRoundTrip subscribes at another process and waits for its notification. The cases: on
// both sides a goroutine is woken, or polls the socket, or polls the ring.
func BenchmarkRoundTrip(b *testing.B) {
	for _, c := range []struct {
		name, network string
		polls         bool
		spin          time.Duration
	}{
		{"tcp/woken", "tcp", false, 0}, {"tcp/reader-polls", "tcp", false, time.Second}, {"unix/woken", "unix", false, 0}, {"unix/polls", "unix", true, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %v %d", publisherVariable, c.network, c.polls, c.spin))
			child.Stderr = os.Stderr
			child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := child.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := child.Start(); err != nil {
				b.Fatal(err)
			}
			var address string
			if _, err := fmt.Fscanln(out, &address); err != nil {
				b.Fatal(err)
			}
			var completed atomic.Int64
			come := make(chan struct{}, 1)
			n := notify.New(notify.Config{
				Dial: func(ctx context.Context, address string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, c.network, address)
				},
				Spin:      c.spin,
				Completed: func(completions []notify.Completion) { completed.Add(int64(len(completions))) },
				Handle: func() {
					select {
					case come <- struct{}{}:
					default:
					}
				},
			})
			n.SetPolling(c.polls)
			task := 0
			for b.Loop() {
				task++
				n.Subscribe(transfer.Peer{Address: address}, ref(task))
				n.Flush()
				for completed.Load() < int64(task) {
					if c.polls {
						n.Poll()
					} else {
						<-come
					}
				}
			}
			n.Close()
			if err := child.Wait(); err != nil {
				b.Error(err)
			}
		})
	}
}
