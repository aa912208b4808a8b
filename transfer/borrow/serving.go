package borrow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/mishap"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/dataproto"
	"github.com/millrace/millrace/transfer/objindex"
)

// serving is one connection of a reader or writer.
type serving struct {
	server *Server
	unix   *net.UnixConn
	reader transfer.Reader
	write  bool
	// lent is the memory that the other side maps, with its source and receiver. slots is the set
	// of reader slots of this connection in the shared object index, nil if it has none. welcome
	// sets both.
	lent  Host
	slots *objindex.ReaderSlots
	// stager copies parts of objects on the GPU to lent.Space. nil: only objects in lent.Space are
	// lent. welcome sets it.
	stager Stager

	writing sync.Mutex // Held while a message is written.
	// creating counts the goroutines that wait for memory, or for the GPU.
	creating sync.WaitGroup

	mu sync.Mutex
	// All below is guarded by mu. places are those of writers, stages those of readers. staging is
	// the number of stages that exist or are being made.
	leases    map[transfer.LeaseID]object
	places    map[uint64]*place
	stages    map[uint64]*staged
	staging   int
	lastPlace uint64
	// frames is the number of all regions in leases.
	frames int
	ended  bool
	// cut are the timers that end the connections of writers that are to give up; see hangUp.
	cut []*time.Timer
}

// object is an object under a lease.
type object struct {
	// kept are the bytes that count in Server.kept.
	kept uint64
	// regions are the frames, if the connection stages parts of them; else nil.
	regions []transfer.Region
}

// object returns what the connection needs to know about a leased object.
func (c *serving) object(l transfer.Leased) (o object) {
	if c.reader.Worker == 0 {
		o.kept = l.Head.Bytes()
	}
	if c.stager != nil {
		o.regions = l.Regions
	}
	return o
}

// place is the memory of an object that a client is writing. late ends the connection if the writer
// does not finish in time; guarded by serving.mu.
type place struct {
	incoming transfer.Incoming
	bytes    uint64
	late     *time.Timer
}

func (c *serving) run() {
	s := c.server
	defer s.wait.Done()
	ctx, cancel := context.WithCancel(context.Background())
	err := c.guarded(ctx)
	// NB: first end the connection, then take the leases back. A reader that finds the socket open
	// then knows that its leases hold.
	c.shutDown()
	_ = c.unix.Close()
	if c.slots != nil {
		err = errors.Join(err, c.slots.Close())
	}
	cancel()
	c.creating.Wait()
	c.mu.Lock()
	c.ended = true
	var leases []transfer.LeaseID
	var kept uint64
	for id, o := range c.leases {
		leases = append(leases, id)
		kept += o.kept
	}
	places, stages := c.places, c.stages
	c.leases, c.places, c.stages = nil, nil, nil
	for _, t := range c.cut {
		t.Stop()
	}
	c.mu.Unlock()
	if len(leases) > 0 {
		c.lent.Source.Release(leases)
	}
	for _, p := range places {
		p.late.Stop()
		p.incoming.Abort()
	}
	for _, p := range stages {
		p.late.Stop()
		c.stager.Unstage(p.place)
	}
	s.mu.Lock()
	s.kept -= kept
	delete(s.conns, c)
	closed := s.closed
	s.mu.Unlock()
	if !closed {
		s.config.Log.Debug("a same-host reader ended", "reader", c.reader.Worker, "leases", len(leases), "places", len(places)+len(stages), "error", err)
	}
}

// shutDown ends the connection: the reader sees it at once, and the goroutine of run returns. Close
// does neither in time. It leaves the socket open while another goroutine uses it, and while a
// process that this one starts has a copy of the descriptor, between fork and exec. So only run
// closes the socket, after shutDown: had another goroutine begun to close it, shutDown would fail,
// and the leases would be taken back while the reader finds the socket open.
func (c *serving) shutDown() {
	_ = c.unix.CloseWrite() // these fail if the reader has ended the connection
	_ = c.unix.CloseRead()
}

// guarded is serve, but a panic ends only this connection.
func (c *serving) guarded(ctx context.Context) (err error) {
	defer mishap.Caught(c.server.config.Log, "a same-host connection", func(e error) { err = e })
	return c.serve(ctx)
}

// serve answers requests until the connection ends.
func (c *serving) serve(ctx context.Context) error {
	defer c.server.greeted(c)
	if err := c.unix.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	var hello hostv1.BorrowRequest
	if err := slabshare.ReadHello(c.unix, &hello); err != nil {
		return err
	}
	if err := c.unix.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if err := c.welcome(&hello); err != nil {
		return err
	}
	c.server.greeted(c)
	if hello.GetHello().GetNotifications() {
		c.server.config.Notify(c.unix)
		return nil
	}
	inbox, err := slabshare.NewInbox(c.unix)
	if err != nil {
		return err
	}
	var requests []*hostv1.BorrowRequest
	take := func(message []byte) error {
		request := new(hostv1.BorrowRequest)
		requests = append(requests, request)
		return slabshare.Into(message, request)
	}
	spin := time.Duration(0)
	for {
		asked := time.Now()
		requests = requests[:0]
		err := inbox.Next(spin, take)
		for _, request := range requests {
			if err == nil {
				err = c.answer(ctx, request)
			}
		}
		if err != nil {
			return err
		}
		// Readers of a GPU's memory often send several requests in a row, and waking up this
		// goroutine takes longer than handling a request.
		if spin = 0; c.server.config.Device != nil && slabshare.Spins() && time.Since(asked) < spinFor {
			spin = spinFor
		}
	}
}

func (c *serving) welcome(request *hostv1.BorrowRequest) error {
	refuse := func(reason, message string) error {
		err := slabshare.Write(c.unix, refusal(request.GetCall(), reason, message))
		return errors.Join(errors.New(message), err)
	}
	hello, err := request.GetHello(), error(nil)
	config := &c.server.config
	switch {
	case hello == nil:
		return refuse(reasonProtocol, "the first message must be a hello")
	case config.Accept != nil && !config.Accept(hello.GetToken()):
		return refuse(reasonDenied, "this is not the cluster's token; use the one that its scheduler printed")
	case hello.GetNotifications() && config.Notify == nil:
		return refuse(reasonProtocol, "this worker tells nobody of results")
	case hello.GetNotifications():
		id := config.Space.Identity()
		return slabshare.Write(c.unix, &hostv1.BorrowResponse{Call: request.GetCall(), Answer: &hostv1.BorrowResponse_Welcome{
			Welcome: &hostv1.BorrowWelcome{WorkerUuid: id.WorkerUUID[:], Incarnation: id.Incarnation[:], Nonce: id.Nonce, Notifications: true},
		}})
	case hello.GetWrite() && config.AcceptWriter != nil && !config.AcceptWriter(hello.GetToken()):
		return refuse(reasonDenied, "a token of this role may not write; use a client's")
	case hello.GetWrite() && (hello.GetReaderWorkerId() != 0 || config.Receiver == nil):
		return refuse(reasonDenied, "only clients write")
	case hello.GetPinned() && (config.Host == nil || hello.GetWrite()):
		return refuse(reasonDevice, "this worker has no pinned host memory below a GPU")
	case config.Device == nil && config.Host != nil && hello.GetDevice() && !hello.GetPinned():
		return refuse(reasonDevice, "this worker's memory lies on a GPU, and its system does not share that with other processes")
	case config.Device != nil && config.Host == nil && (!hello.GetDevice() || hello.GetWrite()):
		return refuse(reasonDevice, "this worker's memory lies on a GPU, and only its peers map it; read and write by DataService")
	}
	if c.lent = (Host{Space: config.Space, Source: config.Source, Receiver: config.Receiver}); config.Host != nil && (config.Device == nil || !hello.GetDevice() || hello.GetWrite()) {
		c.lent = *config.Host
	}
	if hello.GetPinned() {
		// Without Host.Source, which would first copy objects to host memory: objects that are
		// already there are read there, and others in parts.
		c.lent = Host{Space: config.Host.Space, Source: config.Source}
		if s := config.Host.Stager; s != nil && s.StageBytes() > 0 {
			c.stager = s
		}
	}
	c.reader, c.write = transfer.Reader{Worker: ids.WorkerID(hello.GetReaderWorkerId())}, hello.GetWrite()
	id := c.lent.Space.Identity()
	file := c.server.readOnly
	if c.write {
		file = c.server.writable
	}
	welcome := &hostv1.BorrowWelcome{
		WorkerUuid: id.WorkerUUID[:], Incarnation: id.Incarnation[:], Nonce: id.Nonce, MemoryBytes: c.lent.Space.Size(),
	}
	if d := config.Device; d != nil && c.lent.Space == config.Space {
		file = nil
		welcome.Device = &hostv1.DeviceMemory{IpcHandle: d.Handle[:], DeviceUuid: d.UUID[:]}
	}
	if c.stager != nil {
		welcome.StageBytes = c.stager.StageBytes()
	}
	files := []*os.File{file}
	if hello.GetObjectIndex() && !c.write && config.Index != nil && c.lent.Space == config.Space {
		if c.slots, err = config.Index.NewReaderSlots(); err == nil {
			welcome.ObjectIndex, files = true, append(files, config.Index.File(), c.slots.File(), config.Index.EgressTokenFile())
		} else {
			config.Log.Warn("a same-host reader has to ask for every object", "error", err)
		}
	}
	return slabshare.Write(c.unix, &hostv1.BorrowResponse{
		Call: request.GetCall(), Answer: &hostv1.BorrowResponse_Welcome{Welcome: welcome},
	}, files...)
}

func refusal(call uint64, reason, message string) *hostv1.BorrowResponse {
	return &hostv1.BorrowResponse{Call: call, Error: &millracev1.TaskError{Reason: reason, Message: message}}
}

func (c *serving) send(m *hostv1.BorrowResponse) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return slabshare.Write(c.unix, m)
}

func (c *serving) answer(ctx context.Context, request *hostv1.BorrowRequest) error {
	response := &hostv1.BorrowResponse{Call: request.GetCall()}
	switch order := request.GetOrder().(type) {
	case *hostv1.BorrowRequest_Acquire:
		return c.acquire(response, order.Acquire)
	case *hostv1.BorrowRequest_AcquireMany:
		return c.acquireMany(response, order.AcquireMany)
	case *hostv1.BorrowRequest_Renew:
		leases, err := leaseIDs(order.Renew.GetLeaseIds())
		if err != nil {
			return c.send(refusal(response.GetCall(), reasonProtocol, err.Error()))
		}
		held := c.lent.Source.Renew(leases, lifetime(order.Renew.GetTtlMillis(), defaultTTL))
		response.Answer = &hostv1.BorrowResponse_Renewed{Renewed: &hostv1.BorrowHeld{Held: held}}
	case *hostv1.BorrowRequest_Release:
		leases, err := leaseIDs(order.Release.GetLeaseIds())
		if err != nil {
			return c.send(refusal(response.GetCall(), reasonProtocol, err.Error()))
		}
		response.Answer = &hostv1.BorrowResponse_Released{Released: &hostv1.BorrowHeld{Held: c.release(leases)}}
	case *hostv1.BorrowRequest_Create:
		return c.create(ctx, request.GetCall(), order.Create.GetHead())
	case *hostv1.BorrowRequest_Finish:
		return c.finish(ctx, response, order.Finish)
	case *hostv1.BorrowRequest_Stage:
		return c.stage(ctx, request.GetCall(), order.Stage)
	case *hostv1.BorrowRequest_Unstage:
		return c.unstage(order.Unstage.GetPlaceId())
	default:
		return c.send(refusal(response.GetCall(), reasonProtocol, "an order that this version does not know"))
	}
	return c.send(response)
}

func leaseIDs(numbers []uint64) ([]transfer.LeaseID, error) {
	if len(numbers) > maxRefs {
		return nil, fmt.Errorf("%d leases in one request; at most %d", len(numbers), maxRefs)
	}
	out := make([]transfer.LeaseID, len(numbers))
	for i, n := range numbers {
		out[i] = transfer.LeaseID(n)
	}
	return out, nil
}

// lifetime returns the duration of leases that a request asks for, at most maxTTL. 0 milliseconds
// mean otherwise, which is 0 for leases that last as long as the connection.
func lifetime(millis uint64, otherwise time.Duration) time.Duration {
	if millis == 0 {
		return otherwise
	}
	return time.Duration(min(millis, uint64(maxTTL/time.Millisecond))) * time.Millisecond
}

// release ends those of the leases that belong to this connection.
func (c *serving) release(leases []transfer.LeaseID) []bool {
	mine := make([]transfer.LeaseID, 0, len(leases))
	var kept uint64
	c.mu.Lock()
	for _, id := range leases {
		if o, ok := c.leases[id]; ok {
			delete(c.leases, id)
			mine = append(mine, id)
			kept += o.kept
			c.frames -= len(o.regions)
		}
	}
	c.mu.Unlock()
	c.server.mu.Lock()
	c.server.kept -= kept
	c.server.mu.Unlock()
	got := c.lent.Source.Release(mine)
	if len(mine) == len(leases) {
		return got
	}
	by := make(map[transfer.LeaseID]bool, len(mine))
	for i, id := range mine {
		by[id] = got[i]
	}
	held := make([]bool, len(leases))
	for i, id := range leases {
		held[i] = by[id]
	}
	return held
}

func (c *serving) acquire(response *hostv1.BorrowResponse, order *hostv1.BorrowAcquire) error {
	if len(order.GetObjects()) > maxRefs {
		return c.send(refusal(response.GetCall(), reasonProtocol, fmt.Sprintf("%d objects in one request; at most %d", len(order.GetObjects()), maxRefs)))
	}
	refs := dataproto.RefsFrom(order.GetObjects())
	out := &hostv1.BorrowAcquired{Incarnation: c.server.config.Incarnation, Leases: make([]*hostv1.ReadLease, len(refs))}
	lent := make(map[transfer.LeaseID]object)
	var elsewhere []transfer.LeaseID
	var bytes uint64
	answer := c.answering()
	reader := c.reader
	reader.Keeps, reader.Needs = order.GetKeeps(), order.GetNeeds()
	var away []transfer.Ref
	for i, l := range c.lent.Source.Lease(reader, refs, lifetime(order.GetTtlMillis(), 0)) {
		lease := &hostv1.ReadLease{}
		out.Leases[i] = lease
		switch {
		case l.Lease == 0 && errors.Is(l.Err, transfer.ErrNotHere):
			lease.Refusal = hostv1.Refusal_REFUSAL_NOT_HERE
		case l.Lease == 0:
			lease.Refusal = hostv1.Refusal_REFUSAL_ELSEWHERE
		case !c.lends(l.Regions, false) || !answer.has(l.Head) || !c.keep(l.Head.Bytes()):
			elsewhere = append(elsewhere, l.Lease)
			lease.Refusal = hostv1.Refusal_REFUSAL_ELSEWHERE
			if reader.Needs && !c.lends(l.Regions, false) {
				away = append(away, refs[i])
			}
		default:
			lent[l.Lease] = c.object(l)
			lease.LeaseId, lease.Head = uint64(l.Lease), dataproto.HeadTo(l.Head)
			lease.Frames = dataproto.FramesTo(l.Regions)
			bytes += l.Head.Bytes()
		}
	}
	c.lent.Source.Release(elsewhere)
	if source, ok := c.lent.Source.(transfer.Bringer); ok && len(away) > 0 {
		source.Bring(reader, away) // the reader asks again
	}
	c.keepLeases(lent)
	c.server.out.Add(bytes)
	response.Answer = &hostv1.BorrowResponse_Acquired{Acquired: out}
	return c.send(response)
}

// answering counts the room that is left in an answer to a request for leases.
type answering struct{ leases, frames, bytes int }

func (c *serving) answering() answering {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := answering{leases: maxLeases - len(c.leases), frames: math.MaxInt, bytes: answerBytes}
	if c.stager != nil {
		left.frames = maxFrames - c.frames
	}
	return left
}

// keepLeases adds the leases of an answer to those of the connection.
func (c *serving) keepLeases(lent map[transfer.LeaseID]object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, o := range lent {
		c.leases[id] = o
		c.frames += len(o.regions)
	}
}

// has says whether the answer has room for a lease on an object, and if so takes that room. Readers
// get the other objects by DataService.
func (a *answering) has(h transfer.Head) bool {
	n := 64 + len(h.Header) + 32*len(h.FrameBytes)
	if a.leases == 0 || n > a.bytes || len(h.FrameBytes) > a.frames {
		return false
	}
	a.leases, a.frames, a.bytes = a.leases-1, a.frames-len(h.FrameBytes), a.bytes-n
	return true
}

// keep counts bytes that a client wants to use in place: at most half of the memory. Clients may
// keep results for as long as they like, and must not take the memory of tasks. Beyond the limit,
// clients copy objects out.
func (c *serving) keep(bytes uint64) bool {
	if c.reader.Worker != 0 {
		return true
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept+bytes > s.config.Space.Size()/2 {
		return false
	}
	s.kept += bytes
	return true
}

// lends says whether all frames of an object lie in the memory that was passed to the reader, or,
// if the reader stages, on the GPU.
func (c *serving) lends(regions []transfer.Region, stages bool) bool {
	for _, r := range regions {
		if r.Frame.Bytes > 0 && r.Space != c.lent.Space && !(stages && c.onGPU(r)) {
			return false
		}
	}
	return true
}

// onGPU says whether a frame lies on the GPU of a worker that lends its pinned memory.
func (c *serving) onGPU(r transfer.Region) bool {
	return c.stager != nil && r.Frame.Bytes > 0 && r.Space == c.server.config.Space
}

// create makes room for an object, in a goroutine of its own, because it may wait for memory.
func (c *serving) create(ctx context.Context, call uint64, pb *millracev1.ObjectHead) error {
	if !c.write {
		return c.send(refusal(call, reasonProtocol, "only who said so in its hello writes"))
	}
	head, err := dataproto.WrittenHead(pb)
	if err != nil {
		return c.send(refusal(call, failure(err), status.Convert(err).Message()))
	}
	c.creating.Add(1)
	go func() {
		defer c.creating.Done()
		defer mishap.Caught(c.server.config.Log, fmt.Sprintf("a place for object %s", head.Ref), func(err error) {
			_ = c.send(refusal(call, reasonInternal, err.Error())) // if the send fails, the client is gone
		})
		incoming, err := c.lent.Receiver.Create(ctx, head)
		if err != nil {
			_ = c.send(refusal(call, failure(err), status.Convert(err).Message())) // if the send fails, the client is gone
			return
		}
		created := &hostv1.BorrowCreated{Frames: dataproto.FramesTo(incoming.Regions())}
		c.mu.Lock()
		if c.ended || ctx.Err() != nil {
			c.mu.Unlock()
			incoming.Abort()
			return
		}
		c.lastPlace++
		created.PlaceId = c.lastPlace
		timeout := c.server.config.WriterTimeout + time.Duration(head.Bytes()/slowestWriter)*time.Second
		c.places[c.lastPlace] = &place{incoming, head.Bytes(), time.AfterFunc(timeout, func() { c.hangUp(head.Ref, timeout) })}
		c.mu.Unlock()
		_ = c.send(&hostv1.BorrowResponse{Call: call, Answer: &hostv1.BorrowResponse_Created{Created: created}})
	}()
	return nil
}

// hangUp ends the connection of a writer that has not finished an object in time, because others
// wait for its memory. First it closes its own side, so that the writer stops writing and closes
// the connection. If the writer has not done so after WriterTimeout, hangUp closes the connection.
// It waits longer while the writer's process is stopped: the process still has the memory mapped,
// and would write into another object when it continues.
func (c *serving) hangUp(ref transfer.Ref, timeout time.Duration) {
	c.server.config.Log.Warn("a client has not finished writing an object in time, and is to give up its memory", "object", ref.String(), "after", timeout)
	_ = c.unix.CloseWrite() // it fails if the connection has ended, which is all that is wanted
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	var cut *time.Timer
	cut = time.AfterFunc(c.server.config.WriterTimeout, func() {
		if c.stopped() {
			cut.Reset(c.server.config.WriterTimeout)
			return
		}
		c.shutDown() // its goroutine gives the memory back
	})
	c.cut = append(c.cut, cut)
}

// stopped says whether the process at the other end is stopped (by SIGSTOP or a debugger).
func (c *serving) stopped() bool {
	peer, err := slabshare.Peer(c.unix)
	if err != nil {
		return false // the connection has ended
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", peer.Pid))
	if err != nil {
		return false // the process has ended
	}
	_, state, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	return strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t")
}

// failure returns the stable reason of an error of the receiver.
func failure(err error) string {
	if s, ok := status.FromError(err); ok {
		for _, detail := range s.Details() {
			if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetReason() != "" {
				return info.GetReason()
			}
		}
	}
	return reasonInternal
}

func (c *serving) finish(ctx context.Context, response *hostv1.BorrowResponse, order *hostv1.BorrowFinish) error {
	c.mu.Lock()
	p := c.places[order.GetPlaceId()]
	delete(c.places, order.GetPlaceId())
	if p != nil {
		p.late.Stop()
	}
	c.mu.Unlock()
	if p == nil {
		return c.send(refusal(response.GetCall(), reasonProtocol, fmt.Sprintf("there is no place %d", order.GetPlaceId())))
	}
	if !order.GetCommit() {
		p.incoming.Abort()
		return c.send(response)
	}
	c.creating.Add(1)
	go func() {
		defer c.creating.Done()
		defer mishap.Caught(c.server.config.Log, "the end of a write", func(err error) {
			_ = c.send(refusal(response.GetCall(), reasonInternal, err.Error())) // if the send fails, the client is gone
		})
		if err := p.incoming.Commit(ctx); err != nil {
			_ = c.send(refusal(response.GetCall(), failure(err), status.Convert(err).Message()))
			return
		}
		c.server.in.Add(p.bytes)
		response.Answer = &hostv1.BorrowResponse_Finished{Finished: &millracev1.WriteObjectResponse{Bytes: p.bytes}}
		_ = c.send(response)
	}()
	return nil
}
