package borrow_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/transfertest"
)

// strangerEnv holds the address of a worker. It makes this test program a process of another user
// that prints the answer of the worker.
const strangerEnv = "MILLRACE_TEST_STRANGER"

func lookAsStranger(address string) {
	conn, err := net.Dial("unix", slabshare.Name(address))
	if err != nil {
		panic(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		panic(err)
	}
	_, _ = os.Stdout.Write(b) // the parent reads it
	os.Exit(0)
}

func call(t *testing.T, peer transfer.Peer) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: slabshare.Name(peer.Address), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ended waits until the other side has closed the connection.
func ended(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

// TestNobodyOfAnotherUserIsReadFrom: the server knows the peer's user before it reads anything, and
// refuses the peer without a hello.
func TestNobodyOfAnotherUserIsReadFrom(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	peer, _ := serve(t, transfertest.NewObjects(), borrow.ServerConfig{})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), strangerEnv+"="+peer.Address, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "lends to processes of user 0, not 65534") {
		t.Errorf("%q, %v", out, err)
	}
}

// TestAHelloThatIsOnlyAnnouncedTakesNoMemory: the server allocates nothing for a length that was
// only announced. At 256 MiB each, eight connections took 1.6 GiB, without a token.
func TestAHelloThatIsOnlyAnnouncedTakesNoMemory(t *testing.T) {
	peer, _ := serve(t, transfertest.NewObjects(), borrow.ServerConfig{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 8 {
		conn := call(t, peer)
		if _, err := conn.Write(binary.LittleEndian.AppendUint32(nil, slabshare.MaxMessageBytes)); err != nil {
			t.Fatal(err)
		}
		ended(t, conn)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
		t.Errorf("%d bytes were allocated", took)
	}
}

// TestSilentConnectionsAreFew: the oldest silent connection is closed to make room for one that
// sends a hello.
func TestSilentConnectionsAreFew(t *testing.T) {
	peer, _ := serve(t, transfertest.NewObjects(), borrow.ServerConfig{})
	const many, stay = 200, 64
	for limit := time.Now().Add(transfertest.Patience); ; {
		var conns []*net.UnixConn
		began := time.Now()
		for range many {
			conns = append(conns, call(t, peer))
		}
		for _, c := range conns[:many-stay] {
			ended(t, c)
		}
		last := conns[many-1]
		err := slabshare.Write(last, &hostv1.BorrowRequest{Call: 1, Order: &hostv1.BorrowRequest_Hello{Hello: &hostv1.BorrowHello{}}})
		n := 0
		if err == nil {
			n, err = last.Read(make([]byte, 100))
		}
		if n >= 20 && err == nil {
			return
		}
		// A busy machine may need longer than the time for a hello.
		if time.Since(began) < 4*time.Second || time.Now().After(limit) {
			t.Fatalf("the last one got %d bytes, %v", n, err)
		}
	}
}

// TestAPanicEndsOneConnection: a panic must not end the worker, because its memory holds the
// results of others.
func TestAPanicEndsOneConnection(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 1000))
	peer, _ := serve(t, transfertest.Panicking{Objects: objects}, borrow.ServerConfig{})
	path := open(t, borrow.Config{NoIndex: true})
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{{Task: 13, Generation: 1}}, transfertest.NewSink()); !errors.Is(err, transfer.ErrPeerLost) {
		t.Errorf("the fetch that met it: %v", err)
	}
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, transfertest.NewSink()); err != nil {
		t.Errorf("another one: %v", err)
	}
}

// upload is a receiver for one object. The channel ended gets the outcome of the write.
type upload struct {
	space   memory.Space
	ended   chan string
	refusal error
}

func (u *upload) Create(_ context.Context, head transfer.Head) (transfer.Incoming, error) {
	return &uploading{u, head}, nil
}

type uploading struct {
	*upload
	head transfer.Head
}

func (u *uploading) Regions() (out []transfer.Region) {
	for _, n := range u.head.FrameBytes {
		out = append(out, transfer.Region{Space: u.space, Frame: memory.Frame{Offset: memory.HeaderBytes, Bytes: n}})
	}
	return out
}
func (u *uploading) Commit(context.Context) error { u.ended <- "committed"; return u.refusal }
func (u *uploading) Abort()                       { u.ended <- "aborted" }

// asks sends a request and returns the answer.
func asks(t *testing.T, conn *net.UnixConn, request *hostv1.BorrowRequest) *hostv1.BorrowResponse {
	t.Helper()
	if err := slabshare.Write(conn, request); err != nil {
		t.Fatal(err)
	}
	inbox, err := slabshare.NewInbox(conn)
	if err != nil {
		t.Fatal(err)
	}
	var response hostv1.BorrowResponse
	if err := inbox.Next(0, func(m []byte) error { return slabshare.Into(m, &response) }); err != nil {
		t.Fatal(err)
	}
	return &response
}

// writing begins to write an object of 1000 bytes.
func writing(t *testing.T, u *upload, timeout time.Duration) (conn *net.UnixConn, placeID uint64) {
	t.Helper()
	objects := newSlabbed(t, transfertest.NewObjects())
	u.space, u.ended = objects.slab, make(chan string, 1)
	peer, _ := listen(t, borrow.ServerConfig{Space: objects.slab, Source: objects, Receiver: u, WriterTimeout: timeout})
	conn = call(t, peer)
	welcome := asks(t, conn, &hostv1.BorrowRequest{Call: 1, Order: &hostv1.BorrowRequest_Hello{Hello: &hostv1.BorrowHello{Write: true}}})
	if welcome.GetWelcome() == nil {
		t.Fatal(welcome)
	}
	created := asks(t, conn, &hostv1.BorrowRequest{Call: 2, Order: &hostv1.BorrowRequest_Create{Create: &hostv1.BorrowCreate{
		Head: &millracev1.ObjectHead{Object: &millracev1.ObjectRef{TaskId: 5, Generation: 1}, FrameBytes: []uint64{1000}},
	}}})
	if created.GetCreated().GetPlaceId() == 0 {
		t.Fatal(created)
	}
	return conn, created.GetCreated().GetPlaceId()
}

// TestAWriterThatIsNotDoneInTimeLosesItsPlace: first the server closes its side of the connection;
// if the writer does not close its own side, the server closes the connection.
func TestAWriterThatIsNotDoneInTimeLosesItsPlace(t *testing.T) {
	u := new(upload)
	conn, _ := writing(t, u, 50*time.Millisecond)
	ended(t, conn) // and the writer keeps its own side open
	if got := <-u.ended; got != "aborted" {
		t.Error(got)
	}
}

// TestARefusedWriteSaysWhy: a client may write only the objects that the scheduler allows, and gets
// the reason of a refusal.
func TestARefusedWriteSaysWhy(t *testing.T) {
	refusal, err := status.New(codes.PermissionDenied, "it is the result of a task").WithDetails(&errdetails.ErrorInfo{Reason: "NOT_A_DATA_TASK", Domain: "millrace"})
	if err != nil {
		t.Fatal(err)
	}
	for _, refused := range []error{nil, refusal.Err()} {
		u := &upload{refusal: refused}
		conn, place := writing(t, u, 0)
		answer := asks(t, conn, &hostv1.BorrowRequest{Call: 3, Order: &hostv1.BorrowRequest_Finish{Finish: &hostv1.BorrowFinish{PlaceId: place, Commit: true}}})
		if got := <-u.ended; got != "committed" {
			t.Error(got)
		}
		if (answer.GetError().GetReason() == "NOT_A_DATA_TASK") != (refused != nil) || (answer.GetFinished() == nil) != (refused != nil) {
			t.Errorf("%v", answer)
		}
	}
}

// TestAHugeObjectIsNoPlace: sizes whose sum overflows, and heads that are too large for readers.
func TestAHugeObjectIsNoPlace(t *testing.T) {
	conn, _ := writing(t, new(upload), 0)
	for name, head := range map[string]*millracev1.ObjectHead{
		"no task":  {FrameBytes: []uint64{1}},
		"overflow": {Object: &millracev1.ObjectRef{TaskId: 5}, FrameBytes: []uint64{1 << 63, 1 << 63, 8}},
		"header":   {Object: &millracev1.ObjectRef{TaskId: 5}, Header: make([]byte, 17<<20)},
		"frames":   {Object: &millracev1.ObjectRef{TaskId: 5}, FrameBytes: make([]uint64, 1<<20+1)},
	} {
		answer := asks(t, conn, &hostv1.BorrowRequest{Call: 3, Order: &hostv1.BorrowRequest_Create{Create: &hostv1.BorrowCreate{Head: head}}})
		if answer.GetError().GetReason() != "INVALID_FIELD" || !strings.HasPrefix(answer.GetError().GetMessage(), "head.") {
			t.Errorf("%s: %v", name, answer)
		}
	}
}

// TestAnswersToReadersAreBounded: objects that do not fit into an answer must be read by another
// path.
func TestAnswersToReadersAreBounded(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, strings.Repeat("h", 1<<20), make([]byte, 10))
	peer, _ := serve(t, objects, borrow.ServerConfig{})
	path := open(t, borrow.Config{NoIndex: true})
	refs := make([]transfer.Ref, 300)
	for i := range refs {
		refs[i] = one
	}
	b, err := path.Batch(t.Context(), peer, refs)
	if err != nil {
		t.Fatal(err)
	}
	lent := 0
	for _, o := range b.Objects {
		if o.Err == nil {
			lent++
		} else if !errors.Is(o.Err, transfer.ErrUnreachable) {
			t.Error(o.Err)
		}
	}
	if lent == 0 || lent > 64 {
		t.Errorf("%d were lent", lent)
	}
	b.EndAll()
}
