package borrow_test

import (
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

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/transfertest"
)

// strangerEnv holds the address at which a process of another user looks what it is told.
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
	_, _ = os.Stdout.Write(b) // its parent reads it
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

// ended waits until the other side has closed a connection.
func ended(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

// TestNobodyOfAnotherUserIsReadFrom: who it is is known before anything is read, and told without a hello.
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

// TestAHelloThatIsOnlyAnnouncedTakesNoMemory: at 256 MiB each, eight connections took 1.6 GiB, without a token.
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

// TestSilentConnectionsAreFew: the oldest of them makes room for one that has something to say.
func TestSilentConnectionsAreFew(t *testing.T) {
	peer, _ := serve(t, transfertest.NewObjects(), borrow.ServerConfig{})
	const many, stay = 200, 64
	var conns []*net.UnixConn
	for range many {
		conns = append(conns, call(t, peer))
	}
	for _, c := range conns[:many-stay] {
		ended(t, c)
	}
	last := conns[many-1]
	if err := slabshare.Write(last, &millracev1.BorrowRequest{Call: 1, Order: &millracev1.BorrowRequest_Hello{Hello: &millracev1.BorrowHello{}}}); err != nil {
		t.Fatal(err)
	}
	if n, err := last.Read(make([]byte, 100)); n < 20 || err != nil {
		t.Errorf("the last one got %d bytes, %v", n, err)
	}
}

// unlucky panics when it is asked for task 13.
type unlucky struct{ *transfertest.Objects }

func (u unlucky) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	for _, r := range refs {
		if r.Task == 13 {
			panic("thirteen")
		}
	}
	return u.Objects.Lease(reader, refs, ttl)
}

// TestAPanicEndsOneConnection: the worker has the results of others in its memory.
func TestAPanicEndsOneConnection(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 1000))
	peer, _ := serve(t, unlucky{objects}, borrow.ServerConfig{})
	path := open(t, borrow.Config{NoBoard: true})
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{{Task: 13, Generation: 1}}, transfertest.NewSink()); !errors.Is(err, transfer.ErrPeerLost) {
		t.Errorf("the fetch that met it: %v", err)
	}
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, transfertest.NewSink()); err != nil {
		t.Errorf("another one: %v", err)
	}
}
