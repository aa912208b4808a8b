package leader

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/internal/pause"
)

const (
	// patience limits the wait for a connection to one address before the next one is tried. The
	// attempt goes on meanwhile.
	patience = time.Second
	// firstPause and longestPause are the pauses after rounds in which no address was that of a
	// leader.
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
	// unused is how long an address without calls keeps its connection, or its attempts to connect.
	unused = time.Minute
)

// Conn is a connection to the scheduler, for generated clients.
type Conn interface {
	grpc.ClientConnInterface
	// Close ends all calls.
	Close() error
}

// Dial returns a connection to the scheduler of an address, or to the one that leads of several
// addresses with commas between them, as hostport.Dial returns them. It connects at the first call.
//
// With several addresses, calls go to the next one if there is no connection, and to the leader if
// a scheduler refuses them because it does not lead, or still reads its journal. Such unary calls,
// and such calls with one request and a stream of responses, are made again by the connection, for
// at most the time leaderless while nobody leads. Other streams end with the refusal, and the next
// one goes to the leader.
func Dial(addresses string, leaderless time.Duration, options ...grpc.DialOption) (Conn, error) {
	list := strings.Split(addresses, ",")
	if len(list) == 1 {
		return grpc.NewClient(hostport.Target(addresses), options...)
	}
	s := &several{turns: turns{addresses: list}, leaderless: leaderless}
	for _, address := range list {
		conn, err := grpc.NewClient(hostport.Target(address), append(slices.Clone(options), grpc.WithIdleTimeout(unused))...)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.conns = append(s.conns, conn)
	}
	return s, nil
}

// Addresses returns the number of addresses of a connection.
func Addresses(conn grpc.ClientConnInterface) int {
	if s, ok := conn.(*several); ok {
		return len(s.addresses)
	}
	return 1
}

// Address returns the address that the next call of a connection goes to if that is one of several,
// else only.
func Address(conn grpc.ClientConnInterface, only string) string {
	if s, ok := conn.(*several); ok {
		return s.addresses[s.current()]
	}
	return only
}

// several is a connection to the leader of several schedulers.
type several struct {
	conns      []*grpc.ClientConn // one for each address
	leaderless time.Duration
	turns
}

// Close implements Conn.
func (s *several) Close() error {
	var err error
	for _, conn := range s.conns {
		err = errors.Join(err, conn.Close())
	}
	return err
}

// Invoke implements grpc.ClientConnInterface.
func (s *several) Invoke(ctx context.Context, method string, request, response any, options ...grpc.CallOption) error {
	tries := tries{several: s}
	for {
		at, options := s.reach(ctx, options)
		err := s.conns[at].Invoke(ctx, method, request, response, options...)
		if !tries.again(ctx, at, err) {
			return err
		}
	}
}

// NewStream implements grpc.ClientConnInterface.
func (s *several) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	tries, out := tries{several: s}, &stream{repeats: !desc.ClientStreams}
	at := 0
	open := func() (err error) {
		var where []grpc.CallOption
		at, where = s.reach(ctx, options)
		out.ClientStream, err = s.conns[at].NewStream(ctx, desc, method, where...)
		return err
	}
	out.again = func(err error) bool {
		for tries.again(ctx, at, err) {
			if err = open(); err == nil {
				return true
			}
		}
		return false
	}
	out.leave = func(err error) {
		if leader, refused := elsewhere(err); refused {
			s.leave(at, leader)
		}
	}
	if err := open(); err != nil && !out.again(err) {
		return nil, err
	}
	return out, nil
}

// reach returns the address of the next call, with a connection if one can be made, and the options
// of a call there. A call that waits until there is a connection may get one to any address, so it
// waits here.
func (s *several) reach(ctx context.Context, options []grpc.CallOption) (int, []grpc.CallOption) {
	waits := false
	for _, o := range options {
		if o, ok := o.(grpc.FailFastCallOption); ok {
			waits = !o.FailFast
		}
	}
	for length := firstPause; ; length = min(2*length, longestPause) {
		for range s.conns {
			at := s.current()
			if ctx.Err() != nil || connected(ctx, s.conns[at]) {
				return at, append(slices.Clone(options), grpc.WaitForReady(false))
			}
			s.leave(at, "")
		}
		if !waits || pause.For(ctx, length) != nil {
			return s.current(), options
		}
	}
}

// connected waits until a connection is made or was tried in vain, for patience at most.
func connected(ctx context.Context, conn *grpc.ClientConn) bool {
	state := conn.GetState()
	if state == connectivity.Ready {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for ; ; state = conn.GetState() {
		switch state {
		case connectivity.Ready:
			return true
		case connectivity.TransientFailure, connectivity.Shutdown:
			return false
		case connectivity.Idle:
			conn.Connect()
		case connectivity.Connecting:
		}
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// tries are the tries of one call.
type tries struct {
	*several
	refusals int
	pause    time.Duration
	until    time.Time // no more tries; set after the first round
}

// again reports whether a call is to be made again, because a scheduler that does not lead refused
// it. It returns after a pause if as many have refused it as there are addresses.
func (t *tries) again(ctx context.Context, at int, err error) bool {
	leader, refused := elsewhere(err)
	if !refused {
		return false
	}
	t.leave(at, leader)
	if t.refusals++; t.refusals%len(t.conns) != 0 {
		return ctx.Err() == nil
	}
	if t.pause = min(2*t.pause, longestPause); t.until.IsZero() {
		t.pause, t.until = firstPause, time.Now().Add(t.leaderless)
	}
	return time.Now().Add(t.pause).Before(t.until) && pause.For(ctx, t.pause) == nil
}

// stream is a stream that sees refusals.
type stream struct {
	grpc.ClientStream
	// repeats: the stream has one request, and is opened again if it is refused. answered: it was
	// not.
	repeats, answered bool
	request           any
	// again opens the stream again if it was refused, and reports whether it did. leave sees to it
	// that the next one goes to the leader.
	again func(error) bool
	leave func(error)
}

// SendMsg implements grpc.ClientStream.
func (s *stream) SendMsg(m any) error {
	if s.repeats {
		s.request = m
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	for {
		err := s.ClientStream.RecvMsg(m)
		switch {
		case err == nil:
			s.answered, s.request = true, nil
			return nil
		case !s.repeats || s.answered:
			s.leave(err)
			return err
		case !s.again(err):
			return err
		}
		if err := s.ClientStream.SendMsg(s.request); err != nil {
			return err
		}
		if err := s.CloseSend(); err != nil {
			return err
		}
	}
}
