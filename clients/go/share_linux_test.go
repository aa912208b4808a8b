package millrace

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/slabshare"
)

// Frames in a worker's memory may be anywhere in it, but one object is not larger than all of it.
func TestLeasedFramesAreInsideTheMemory(t *testing.T) {
	s := &share{data: make([]byte, 100)}
	at := func(places ...uint64) (out []*hostv1.FrameLocation, sizes []uint64) {
		for i := 0; i < len(places); i += 2 {
			out = append(out, &hostv1.FrameLocation{Offset: places[i], Bytes: places[i+1]})
			sizes = append(sizes, places[i+1])
		}
		return out, sizes
	}
	for _, c := range []struct {
		places []uint64
		ok     bool
	}{
		{[]uint64{0, 100}, true}, {[]uint64{0, 40, 40, 60}, true}, {[]uint64{100, 0}, true}, {nil, true},
		{[]uint64{1, 100}, false}, {[]uint64{math.MaxUint64, 1}, false}, {[]uint64{101, 0}, false}, {[]uint64{0, math.MaxUint64}, false},
		{[]uint64{0, 60, 0, 60}, false}, {[]uint64{0, 100, 0, 100, 0, 100}, false},
	} {
		if _, ok := s.frames(at(c.places...)); ok != c.ok {
			t.Errorf("frames at %v of 100 bytes: %v", c.places, ok)
		}
	}
}

// slowWorker is the socket of a worker on this host that accepts connections and never answers.
// stop ends it and its connections.
func slowWorker(t *testing.T, address string) (accepted <-chan struct{}, stop func()) {
	t.Helper()
	l, err := net.Listen("unix", slabshare.Name(address))
	if err != nil {
		t.Fatal(err)
	}
	come, done := make(chan struct{}, 10), make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
			come <- struct{}{}
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	return come, func() {
		_ = l.Close()
		<-done
	}
}

// A worker that does not answer delays only those that want its own data. Another one is reached
// meanwhile. A busy machine may need several tries.
func TestASlowWorkerDelaysNoOther(t *testing.T) {
	for deadline := time.Now().Add(eventTimeout); !delaysNoOther(t); {
		if time.Now().After(deadline) {
			t.Fatal("a worker that does not answer delays the others")
		}
	}
}

// delaysNoOther returns whether another worker was reached long before the wait for a slow one had
// an end.
func delaysNoOther(t *testing.T) (quick bool) {
	t.Helper()
	address := fmt.Sprintf("slow-%d:1", os.Getpid())
	accepted, stop := slowWorker(t, address)
	c := new(Client)
	p := &c.data.shares
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if s := p.get(soon(t), address, false); s != nil {
				t.Error("it has shared its memory")
			}
		})
	}
	<-accepted
	other := make(chan struct{})
	go func() {
		defer close(other)
		if s := p.get(soon(t), "nobody:1", false); s != nil {
			t.Error("nobody has shared their memory")
		}
		c.DataPaths()
	}()
	select {
	case <-other:
		quick = true
	case <-time.After(shareTimeout / 2):
	}
	if n := len(accepted); quick && n > 0 {
		t.Errorf("the slow worker was asked %d times at once", n+1)
	}
	stop()
	all.Wait()
	<-other
	if paths := c.DataPaths(); len(paths) != 2 {
		t.Errorf("%v", paths)
	}
	return quick
}

// A caller that gave up does not count as a worker's refusal.
func TestACallersEndIsNoRefusal(t *testing.T) {
	address := fmt.Sprintf("slow-%d:2", os.Getpid())
	accepted, stop := slowWorker(t, address)
	p := new(sharePool)
	ctx, giveUp := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if s := p.get(ctx, address, false); s != nil {
			t.Error("it has shared its memory")
		}
	})
	<-accepted
	giveUp()
	all.Wait()
	all.Go(func() {
		if s := p.get(soon(t), address, false); s != nil {
			t.Error("it has shared its memory")
		}
	})
	select {
	case <-accepted:
	case <-time.After(eventTimeout):
		t.Error("it is not asked again")
	}
	stop()
	all.Wait()
}
