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

// firstBackoff and longestBackoff bound the time between two attempts to connect to a peer. They
// are short, because a restarted peer is back soon. Calls to a peer that has gone fail at once,
// whatever they are.
const (
	firstBackoff   = 50 * time.Millisecond
	longestBackoff = time.Second
)

// New returns a path without connections.
func New(config Config) *Path {
	if config.StallTimeout <= 0 {
		config.StallTimeout = transfer.DefaultStallTimeout
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
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstBackoff, Multiplier: 2, Jitter: 0.2, MaxDelay: longestBackoff},
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
	case p.config.Streams > 1 && len(refs) >= manyObjects:
		return p.fetchShares(ctx, peer, refs, sink)
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
	f.land.stored = f.stored
	defer f.land.close()
	f.placing = newSilence(holdFor, holdFor, func() { f.land.park(0) })
	request := &millracev1.ReadObjectsRequest{Objects: dataproto.RefsTo(refs), Parts: part.of, Part: part.index}
	if p.config.Worker != nil {
		request.ReaderWorkerId = uint32(p.config.Worker())
	}
	ok, err := f.overRaw(ctx, request)
	if !ok {
		err = f.overGRPC(ctx, request)
	}
	_ = f.land.flush() // what has come is in its place, also if the stream failed behind it
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
	// queue are the objects whose heads have come, but for which no place was asked for yet. They
	// are placed when their data comes: then the objects before them are complete, and waiting for
	// memory delays none.
	queue []uint32
	stall *time.Timer
	// land has the buffers of data for a space that the CPU cannot address.
	land landing
	// placing parks the buffers in a long wait for memory.
	placing *silence
}

// incoming is one object of a fetch.
type incoming struct {
	head transfer.Head
	// regions are the places of its frames, if it has places.
	regions []transfer.Region
	// frame and offset are the position of the next byte: the data of an object must arrive in
	// order, so nothing can be missing when the end is reached. offset counts from the beginning of
	// the part.
	part   part
	frame  int
	offset uint64
	// begun: its head has come. placed: a place was asked for; without one it is done.
	begun, placed, done bool
}

func (f *fetch) receive(ctx context.Context, stream grpc.ClientStream) error {
	var m rawframe.ReadResponse
	held := newSilence(holdFor, holdFor, func() { _ = f.land.flush() }) // its error is that of the objects
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
	o := &f.objects[m.Index]
	if m.Error != nil {
		if o.done {
			return nil
		}
		o.done = true
		_ = f.land.flush() // then nothing writes to its regions; the error is that of other objects
		err := fmt.Errorf("%s on %s: %w: %s: %s", f.refs[m.Index], f.peer, transfer.ErrPeerLost, m.Error.GetReason(), m.Error.GetMessage())
		if m.Error.GetReason() == ReasonNotHere {
			err = fmt.Errorf("%s on %s: %w", f.refs[m.Index], f.peer, transfer.ErrNotHere)
		}
		f.sink.Done(int(m.Index), err)
		return nil
	}
	if m.Head != nil {
		if err := f.begin(m); err != nil {
			return err
		}
		if err := f.placeQueue(ctx); err != nil {
			return err
		}
	}
	if !o.begun {
		return f.violation(m.Index, "data before its head")
	}
	if m.Data.Len() > 0 && !o.done {
		misplaced, err := o.write(m, &f.land)
		if misplaced != nil {
			return f.violation(m.Index, "%v", misplaced)
		}
		if err != nil {
			f.unplaced(m.Index, err)
		}
		f.settle(m.Index)
	}
	return nil
}

// begin notes the head of an object.
func (f *fetch) begin(m *rawframe.Message) error {
	o := &f.objects[m.Index]
	if o.begun {
		return f.violation(m.Index, "a second head")
	}
	head := dataproto.HeadFrom(m.Head)
	if want := f.refs[m.Index]; !head.Ref.Answers(want) {
		return f.violation(m.Index, "%s was asked for, %s came", want, head.Ref)
	}
	o.begun, o.head, o.part = true, head, f.part
	f.queue = append(f.queue, m.Index)
	return nil
}

// unplaced fails an object whose memory could not be written, and all that wait for the same
// buffers. Its other data is dropped.
func (f *fetch) unplaced(index uint32, err error) {
	f.land.fail(err)
	f.objects[index].done = true
	f.finish(index, err)
}

// stored reports objects that have come: in one call, if they are consecutive and the sink can take
// many at once. err says why they could not be stored.
func (f *fetch) stored(objects []uint32, err error) {
	first, last := objects[0], objects[len(objects)-1]
	batch := f.sink.Capabilities().Batch
	if err == nil && batch != nil && int(last-first) == len(objects)-1 && len(objects) > 1 {
		batch.DoneBatch(int(first), len(objects))
		return
	}
	for _, index := range objects {
		f.finish(index, err)
	}
}

// finish calls Done for an object that has come. err says why it could not be stored.
func (f *fetch) finish(index uint32, err error) {
	if err != nil {
		err = fmt.Errorf("%s from %s: %w", f.refs[index], f.peer, err)
	}
	f.sink.Done(int(index), err)
}

// settle notes which of some objects are complete.
func (f *fetch) settle(objects ...uint32) {
	var complete []uint32
	for _, index := range objects {
		if o := &f.objects[index]; !o.done && o.complete() {
			o.done = true
			complete = append(complete, index)
		}
	}
	if len(complete) > 0 {
		f.land.arrive(complete, func(index uint32) uint64 { return f.objects[index].bytes() })
	}
}

// placeQueue places all objects of the queue.
func (f *fetch) placeQueue(ctx context.Context) error {
	for len(f.queue) > 0 {
		if err := f.place(ctx); err != nil {
			return err
		}
	}
	return nil
}

// place asks the sink for memory for the first objects of the queue: for many at once, if they are
// consecutive and the sink can do that. The stall timer does not run during that wait, because the
// peer is not the cause. In a long wait the stream gives its buffers back, but objects that have
// come are reported after it: the sink need not be ready for that. The data of an object without a
// place is dropped.
func (f *fetch) place(ctx context.Context) error {
	first := f.queue[0]
	f.stall.Stop()
	f.placing.begin()
	places, err := f.places(ctx, int(first))
	f.placing.end()
	f.stall.Reset(f.path.config.StallTimeout)
	if len(places) == 0 {
		f.queue = f.queue[1:]
		o := &f.objects[first]
		o.placed, o.done = true, true
		f.sink.Done(int(first), err)
		return ctx.Err()
	}
	placed := f.queue[:len(places)]
	f.queue = f.queue[len(places):]
	for i, regions := range places {
		o := &f.objects[placed[i]]
		if err := o.head.Fits(regions); err != nil {
			return f.violation(placed[i], "%v", err)
		}
		o.placed, o.regions = true, regions
	}
	f.settle(placed...)
	return nil
}

// places returns the regions of the first objects of the queue, or the error of the first one.
func (f *fetch) places(ctx context.Context, first int) ([][]transfer.Region, error) {
	n := 1
	for n < len(f.queue) && int(f.queue[n]) == first+n {
		n++
	}
	batch := f.sink.Capabilities().Batch
	if n == 1 || batch == nil {
		regions, err := f.sink.Place(ctx, first, f.objects[first].head)
		if err != nil {
			return nil, err
		}
		return [][]transfer.Region{regions}, nil
	}
	heads := make([]transfer.Head, n)
	for i := range heads {
		heads[i] = f.objects[first+i].head
	}
	placed, err := batch.PlaceBatch(ctx, first, heads, nil)
	if placed.Objects == 0 {
		return nil, err
	}
	regions := make([]transfer.Region, len(placed.Frames))
	for i, frame := range placed.Frames {
		regions[i] = transfer.Region{Space: placed.Space, Frame: frame}
	}
	places := make([][]transfer.Region, placed.Objects)
	for i := range places {
		k := min(len(heads[i].FrameBytes), len(regions))
		places[i], regions = regions[:k:k], regions[k:]
	}
	return places, nil
}

// bounds returns the range of the current frame that belongs to the part.
func (o *incoming) bounds() (begin, end uint64) {
	return o.part.bounds(o.head.FrameBytes[o.frame])
}

// complete says whether all frames are full. It moves on past empty frames.
func (o *incoming) complete() bool {
	for o.frame < len(o.head.FrameBytes) {
		if begin, end := o.bounds(); o.offset < end-begin {
			return false
		}
		o.frame, o.offset = o.frame+1, 0
	}
	return true
}

// expects returns an error unless data for a position comes next.
func (o *incoming) expects(frame uint32, offset uint64) error {
	if o.complete() {
		return errors.New("more data than its frames hold")
	}
	begin, _ := o.bounds()
	if int(frame) != o.frame || offset != begin+o.offset {
		return fmt.Errorf("byte %d of frame %d came, byte %d of frame %d is next", offset, frame, begin+o.offset, o.frame)
	}
	return nil
}

// rest returns the region of the next bytes of the current frame, at most n.
// REQUIRES: it has places, and is not complete.
func (o *incoming) rest(n uint64) transfer.Region {
	region := o.regions[o.frame]
	begin, end := o.bounds()
	at := begin + o.offset
	region.Frame = memory.Frame{Offset: region.Frame.Offset + at, Bytes: min(n, end-at)}
	return region
}

// bytes returns the size of the part.
func (o *incoming) bytes() (n uint64) {
	for _, bytes := range o.head.FrameBytes {
		begin, end := o.part.bounds(bytes)
		n += end - begin
	}
	return n
}

// write stores the data of a message. misplaced is an error of the sender, err one of our memory.
func (o *incoming) write(m *rawframe.Message, land *landing) (misplaced, err error) {
	n := uint64(m.Data.Len())
	if err := o.expects(m.Frame, m.Offset); err != nil {
		return err, nil
	}
	region := o.rest(n)
	if region.Frame.Bytes < n {
		return fmt.Errorf("%d bytes came for the %d that are left of frame %d", n, region.Frame.Bytes, m.Frame), nil
	}
	o.offset += n
	for done := 0; done < m.Data.Len(); {
		into, err := land.room(region)
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
			f.sink.Done(i, fmt.Errorf("%s on %s: %w: the stream ended in its middle", f.refs[i], f.peer, transfer.ErrProtocol))
		}
	}
	return nil
}
