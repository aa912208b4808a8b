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

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
)

// makerVariable makes this test binary the other side of BenchmarkRoundTrip. Its value says the
// network, whether the process polls the ring, for how long connections poll, and the address.
const makerVariable = "HERALD_TEST_MAKER"

func TestMain(m *testing.M) {
	if how := os.Getenv(makerVariable); how != "" {
		answer(how)
		return
	}
	goleak.VerifyTestMain(m)
}

// answer runs a maker that reports every requested object as made. It ends with its parent.
func answer(how string) {
	network, rest, _ := strings.Cut(how, " ")
	var looks bool
	var spin time.Duration
	if _, err := fmt.Sscan(rest, &looks, (*int64)(&spin)); err != nil {
		panic(err)
	}
	at := "127.0.0.1:0"
	if network == "unix" {
		at = fmt.Sprintf("@millrace-herald-%d", os.Getpid())
	}
	listener, err := net.Listen(network, at)
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr())
	var h *notify.Herald
	var mu sync.Mutex // guards asked, and is held while answering
	var asked []ask
	handle := func() {
		mu.Lock()
		defer mu.Unlock()
		for _, a := range asked {
			h.Tell(a.reader, notify.Word{Ref: a.Ref, Bytes: 16, Inline: []byte("sixteen bytes...")})
		}
		asked = asked[:0]
		h.Flush()
	}
	h = notify.New(notify.Config{
		Asked: func(r *notify.Reader, asks []notify.Ask) {
			mu.Lock()
			defer mu.Unlock()
			for _, a := range asks {
				asked = append(asked, ask{r, a})
			}
		},
		Handle: handle,
		Left:   func(*notify.Reader) { os.Exit(0) },
	})
	if looks {
		h.Looking(true)
		go func() {
			for {
				if h.Look() {
					handle()
				}
			}
		}()
	}
	conn, err := listener.Accept()
	if err != nil {
		panic(err)
	}
	h.Serve(conn)
}

// BenchmarkRoundTrip subscribes at another process and waits for its notification. The cases: on
// both sides a goroutine is woken, or polls the socket, or polls the ring.
func BenchmarkRoundTrip(b *testing.B) {
	for _, c := range []struct {
		name, network string
		looks         bool
		spin          time.Duration
	}{
		{"tcp/woken", "tcp", false, 0}, {"tcp/reader-looks", "tcp", false, time.Second}, {"unix/woken", "unix", false, 0}, {"unix/looks", "unix", true, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %v %d", makerVariable, c.network, c.looks, c.spin))
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
			var heard atomic.Int64
			come := make(chan struct{}, 1)
			h := notify.New(notify.Config{
				Dial: func(ctx context.Context, address string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, c.network, address)
				},
				Spin:  c.spin,
				Heard: func(words []notify.Word) { heard.Add(int64(len(words))) },
				Handle: func() {
					select {
					case come <- struct{}{}:
					default:
					}
				},
			})
			h.Looking(c.looks)
			task := 0
			for b.Loop() {
				task++
				h.Await(transfer.Peer{Address: address}, ref(task))
				h.Flush()
				for heard.Load() < int64(task) {
					if c.looks {
						h.Look()
					} else {
						<-come
					}
				}
			}
			h.Close()
			if err := child.Wait(); err != nil {
				b.Error(err)
			}
		})
	}
}
