// Package grpcpath is an Adapter: the transfer path that needs nothing but gRPC, between workers
// and from clients. Bulk bytes travel as raw frames (internal/rawframe): they are copied once from
// the sender's slab to the socket's buffer, and once from the receiver's buffers to its slab.
//
// If both sides use this package, and the server uses its Credentials, bulk bytes do not use
// HTTP/2. They travel as a bare stream over the same port, from slab to socket to slab. Everything
// else, and fetches that get no bare stream, use gRPC.
package grpcpath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/dataproto"
)

// Config does not change during the life of a path.
type Config struct {
	// Worker returns the worker ID to read as. It is a function because a worker gets a new ID when
	// it registers again. Nil: the reader is a client.
	Worker func() ids.WorkerID
	// Token authenticates us to peers. Empty: none is sent.
	Token string
	// StallTimeout is how long a fetch waits for the next byte. Default 5 s.
	StallTimeout time.Duration
	// Received, if set, is called with the size of each chunk that arrives.
	Received func(bytes int)
	// Streams is the number of connections that carry large objects. Default: half the number of
	// cores, 1 to 4. A stream keeps two cores busy, and on a machine with two cores more streams
	// were slower (1.2, 1.2, 0.6 GB/s with 1, 2, 4 streams).
	Streams int
	// DialOptions are added to the options of this package; tests use them to dial in memory. If
	// there are any, all fetches use gRPC.
	DialOptions []grpc.DialOption
}

// Path is the client side of the path.
type Path struct {
	config Config
	mu     sync.Mutex
	// conns are the gRPC connections by address and part, guarded by mu. A connection is opened at
	// its first use. Forget and Close close it.
	conns map[connKey]*grpc.ClientConn
	// raws are the bare streams by address, guarded by mu. Forget and Close close them as well.
	raws   map[string]*rawPeer
	closed bool
}

var _ transfer.Path = (*Path)(nil)

// New returns a path without connections.
func New(config Config) *Path {
	if config.StallTimeout <= 0 {
		config.StallTimeout = 5 * time.Second
	}
	if config.Streams <= 0 {
		config.Streams = min(max(runtime.GOMAXPROCS(0)/2, 1), 4)
	}
	config.Streams = min(config.Streams, maxParts)
	return &Path{config: config, conns: make(map[connKey]*grpc.ClientConn), raws: make(map[string]*rawPeer)}
}

// Capabilities is part of transfer.Path: the path has no optional ability.
func (*Path) Capabilities() transfer.Capabilities { return transfer.Capabilities{} }

// Name is part of transfer.Path.
func (p *Path) Name() string { return "grpc" }

// Close is part of transfer.Path.
func (p *Path) Close() error {
	p.mu.Lock()
	conns := p.conns
	for _, peer := range p.raws {
		peer.close()
	}
	p.conns, p.raws, p.closed = nil, nil, true
	p.mu.Unlock()
	var errs []error
	for _, c := range conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Forget closes the connections to a peer that has left.
func (p *Path) Forget(address string) {
	p.mu.Lock()
	if peer := p.raws[address]; peer != nil {
		peer.close()
		delete(p.raws, address)
	}
	var gone []*grpc.ClientConn
	for k := range p.config.Streams {
		key := connKey{address, uint32(k)}
		if c := p.conns[key]; c != nil {
			gone = append(gone, c)
			delete(p.conns, key)
		}
	}
	p.mu.Unlock()
	for _, c := range gone {
		_ = c.Close() // the only error is that it was closed before
	}
}

// connKey names a connection. Each part of an object travels over a connection of its own.
type connKey struct {
	address string
	part    uint32
}

func (p *Path) conn(address string, part uint32) (*grpc.ClientConn, error) {
	key := connKey{address, part}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("grpc path: %w: closed", transfer.ErrPeerLost)
	}
	if c := p.conns[key]; c != nil {
		return c, nil
	}
	options := append(rawframe.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The back-off is short, because a restarted peer is back soon. Calls to a peer that has
		// gone fail at once, whatever the back-off is.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: p.config.StallTimeout,
		}),
		grpc.WithNoProxy(),
	)
	if p.config.Token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(p.config.Token)))
	}
	c, err := grpc.NewClient("passthrough:///"+address, append(options, p.config.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("grpc path: %s: %w: %w", address, transfer.ErrPeerLost, err)
	}
	p.conns[key] = c
	return c, nil
}

// bearer is a token that is sent with each call, also without encryption: the operator decides
// about TLS.
type bearer string

// GetRequestMetadata is part of credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity is part of credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return false }

// Connect exchanges the addresses for one-sided reads (package ucx), over the gRPC connection
// to that peer. Its error is a gRPC status.
func (p *Path) Connect(ctx context.Context, peer transfer.Peer, request *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
	conn, err := p.conn(peer.Address, 0)
	if err != nil {
		return nil, err
	}
	return workerv1.NewPeerServiceClient(conn).Connect(ctx, request)
}

// Fetch is part of transfer.Path.
func (p *Path) Fetch(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	switch {
	case len(refs) == 0:
		return nil
	case p.config.Streams > 1:
		return p.fetchParts(ctx, peer, refs, sink)
	}
	return p.fetch(ctx, peer, refs, sink, part{})
}

// fetch fetches one part of the objects by one stream.
func (p *Path) fetch(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink, part part) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &fetch{
		path: p, peer: peer, refs: refs, sink: sink, part: part,
		objects: make([]incoming, len(refs)),
		stall: time.AfterFunc(p.config.StallTimeout, func() {
			cancel(fmt.Errorf("grpc path: %s: %w for %v", peer, transfer.ErrStalled, p.config.StallTimeout))
		}),
	}
	defer f.stall.Stop()
	defer func() {
		for i := range f.objects {
			f.objects[i].close()
		}
	}()
	request := &millracev1.ReadObjectsRequest{Objects: dataproto.RefsTo(refs), Parts: part.of, Part: part.index}
	if p.config.Worker != nil {
		request.ReaderWorkerId = uint32(p.config.Worker())
	}
	ok, err := f.overRaw(ctx, request)
	if !ok {
		err = f.overGRPC(ctx, request)
	}
	if err == nil {
		return f.complete()
	}
	if cause := context.Cause(ctx); errors.Is(cause, transfer.ErrStalled) {
		return cause
	}
	return fmt.Errorf("grpc path: %s: %w", peer, failure(ctx, err))
}

func (f *fetch) overGRPC(ctx context.Context, request *millracev1.ReadObjectsRequest) error {
	conn, err := f.path.conn(f.peer.Address, f.part.index)
	if err != nil {
		return err
	}
	stream, err := millracev1.NewDataServiceClient(conn).ReadObjects(ctx, request)
	if err != nil {
		return err
	}
	return f.receive(ctx, stream)
}

// lost returns the error that the end of a bare stream stands for.
func lost(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", transfer.ErrPeerLost, err)
}

// failure converts a gRPC status into an error of package transfer. It is a cancellation only if
// our own context has ended: a peer may send that status, too.
func failure(ctx context.Context, err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded:
		if ended := transfer.ContextErr(ctx); ended != nil {
			return fmt.Errorf("%w: %s", ended, s.Message())
		}
	case codes.Unauthenticated, codes.PermissionDenied:
		return fmt.Errorf("%w: %s", transfer.ErrDenied, s.Message())
	}
	return fmt.Errorf("%w: %s: %s", transfer.ErrPeerLost, s.Code(), s.Message())
}

// fetch is the state of one stream.
type fetch struct {
	path    *Path
	peer    transfer.Peer
	refs    []transfer.Ref
	sink    transfer.Sink
	part    part
	objects []incoming
	stall   *time.Timer
	// last is the object that data came for last. No other object holds buffers.
	last uint32
}

// incoming is one object of a fetch.
type incoming struct {
	regions []transfer.Region
	// frame and offset are the position of the next byte: the data of an object must arrive in
	// order, so nothing can be missing when the end is reached. offset counts from the beginning of
	// the part.
	part   part
	frame  int
	offset uint64
	begun  bool
	done   bool
	// flow stages the data for a space that the CPU cannot address.
	flow      *memory.Inflow
	flowSpace memory.Space
}

func (f *fetch) receive(ctx context.Context, stream grpc.ClientStream) error {
	var m rawframe.ReadResponse
	held := newSilence(holdFor, holdFor, func() { f.objects[f.last].park() })
	for {
		held.begin()
		err := stream.RecvMsg(&m)
		held.end()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.stall.Reset(f.path.config.StallTimeout)
		if f.path.config.Received != nil && m.Data.Len() > 0 {
			f.path.config.Received(m.Data.Len())
		}
		err = f.handle(ctx, &m.Message)
		m.Data.Free()
		if err != nil {
			return err
		}
	}
}

func (f *fetch) violation(index uint32, format string, values ...any) error {
	return fmt.Errorf("%w: object %d of the request: %s", transfer.ErrProtocol, index, fmt.Sprintf(format, values...))
}

func (f *fetch) handle(ctx context.Context, m *rawframe.Message) error {
	if int(m.Index) >= len(f.objects) {
		return f.violation(m.Index, "only %d were asked for", len(f.objects))
	}
	if m.Index != f.last {
		f.objects[f.last].park()
		f.last = m.Index
	}
	o := &f.objects[m.Index]
	if m.Error != nil {
		if o.done {
			return nil
		}
		o.done = true
		o.close()
		err := fmt.Errorf("%s on %s: %w: %s: %s", f.refs[m.Index], f.peer, transfer.ErrPeerLost, m.Error.GetReason(), m.Error.GetMessage())
		if m.Error.GetReason() == ReasonNotHere {
			err = fmt.Errorf("%s on %s: %w", f.refs[m.Index], f.peer, transfer.ErrNotHere)
		}
		f.sink.Done(int(m.Index), err)
		return nil
	}
	if m.Head != nil {
		if o.begun {
			return f.violation(m.Index, "a second head")
		}
		o.begun = true
		if err := f.place(ctx, int(m.Index), m.Head); err != nil {
			return err
		}
	}
	if !o.begun {
		return f.violation(m.Index, "data before its head")
	}
	if m.Data.Len() > 0 && !o.done {
		misplaced, err := o.write(m)
		if misplaced != nil {
			return f.violation(m.Index, "%v", misplaced)
		}
		if err != nil {
			f.unplaced(m.Index, err)
		}
	}
	f.settle(m.Index)
	return nil
}

// unplaced fails an object whose memory could not be written. Its other data is dropped.
func (f *fetch) unplaced(index uint32, err error) {
	o := &f.objects[index]
	o.done = true
	o.close()
	f.sink.Done(int(index), fmt.Errorf("%s from %s: %w", f.refs[index], f.peer, err))
}

// settle calls Done if the object is complete.
func (f *fetch) settle(index uint32) {
	if o := &f.objects[index]; !o.done && o.complete() {
		o.done = true
		f.sink.Done(int(index), o.flush())
	}
}

// place asks the sink for memory. The stall timer does not run during that wait, because the peer
// is not the cause. The data of an object without a place is dropped.
func (f *fetch) place(ctx context.Context, index int, pb *millracev1.ObjectHead) error {
	o := &f.objects[index]
	head := dataproto.HeadFrom(pb)
	if want := f.refs[index]; head.Ref.Task != want.Task || want.Generation != 0 && head.Ref.Generation != want.Generation {
		return f.violation(uint32(index), "%s was asked for, %s came", want, head.Ref)
	}
	f.stall.Stop()
	regions, err := f.sink.Place(ctx, index, head)
	f.stall.Reset(f.path.config.StallTimeout)
	if err != nil {
		o.done = true
		f.sink.Done(index, err)
		return ctx.Err()
	}
	if err := head.Fits(regions); err != nil {
		return f.violation(uint32(index), "%v", err)
	}
	o.regions, o.part = regions, f.part
	return nil
}

// complete says whether all frames are full. It moves on past empty frames.
func (o *incoming) complete() bool {
	for o.frame < len(o.regions) {
		if begin, end := o.part.bounds(o.regions[o.frame].Frame.Bytes); o.offset < end-begin {
			return false
		}
		o.frame, o.offset = o.frame+1, 0
	}
	return true
}

// next returns the region for data that must continue at the current position, and advances the
// position.
func (o *incoming) next(frame uint32, offset, n uint64) (transfer.Region, error) {
	if o.complete() {
		return transfer.Region{}, errors.New("more data than its frames hold")
	}
	region := o.regions[o.frame]
	begin, end := o.part.bounds(region.Frame.Bytes)
	at := begin + o.offset
	if int(frame) != o.frame || offset != at || n > end-at {
		return transfer.Region{}, fmt.Errorf("frame %d [%d, +%d) came, frame %d [%d, +%d) is next", frame, offset, n, o.frame, at, end-at)
	}
	o.offset += n
	region.Frame = memory.Frame{Offset: region.Frame.Offset + at, Bytes: n}
	return region, nil
}

// room returns the memory for the first bytes of a region; for all of them if the CPU can address
// the space. REQUIRES: the memory that it returned before has been filled.
func (o *incoming) room(region transfer.Region) ([]byte, error) {
	staged, ok := region.Space.(memory.Staged)
	if !ok {
		return region.Bytes(), o.flush()
	}
	if o.flow == nil || o.flowSpace != region.Space {
		if err := o.flush(); err != nil {
			return nil, err
		}
		o.flow, o.flowSpace = memory.NewInflow(staged), region.Space
	}
	return o.flow.Room(region.Frame.Offset, region.Frame.Bytes)
}

// flush waits until all data that arrived is in its regions.
func (o *incoming) flush() error {
	if o.flow == nil {
		return nil
	}
	err := o.flow.Flush()
	if err != nil {
		o.close()
	}
	return err
}

// holds says whether buffers are in use.
func (o *incoming) holds() bool { return o.flow != nil && o.flow.Holds() }

// park gives the buffers back while we wait for more data. An error is that of the next room or
// flush.
func (o *incoming) park() {
	if o.holds() {
		o.flow.Park(0)
	}
}

// close drops data that was not flushed. After it, nothing writes to the regions.
func (o *incoming) close() {
	if o.flow != nil {
		o.flow.Close()
	}
}

// write stores the data of a message. misplaced is an error of the sender, err one of our memory.
func (o *incoming) write(m *rawframe.Message) (misplaced, err error) {
	region, err := o.next(m.Frame, m.Offset, uint64(m.Data.Len()))
	if err != nil {
		return err, nil
	}
	for done := 0; done < m.Data.Len(); {
		into, err := o.room(region)
		if err != nil {
			return nil, err
		}
		n := m.Data.CopyFrom(done, into)
		region.Frame = memory.Frame{Offset: region.Frame.Offset + uint64(n), Bytes: region.Frame.Bytes - uint64(n)}
		done += n
	}
	return nil, nil
}

// complete is called when the stream has ended without an error. Each object that is not done by
// then fails.
func (f *fetch) complete() error {
	for i := range f.objects {
		if o := &f.objects[i]; !o.done {
			o.done = true
			o.close()
			f.sink.Done(i, fmt.Errorf("%s on %s: %w: the stream ended in its middle", f.refs[i], f.peer, transfer.ErrProtocol))
		}
	}
	return nil
}
