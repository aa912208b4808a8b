package borrow_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/transfer/transfertest"
)

// childEnv makes this test program a peer that lends one object; its value is the peer's address.
const childEnv = "MILLRACE_TEST_LEND_AS"

// lenderLife is the incarnation of that peer.
var lenderLife = [16]byte{4, 2}

// inSlab is a source of one object in a slab.
type inSlab struct {
	slab  *host.Slab
	frame memory.Frame
}

func (s inSlab) Lease(_ transfer.Reader, refs []transfer.Ref, _ time.Duration) []transfer.Leased {
	out := make([]transfer.Leased, len(refs))
	for i, r := range refs {
		out[i] = transfer.Leased{
			Lease: 1, Head: transfer.Head{Ref: r, FrameBytes: []uint64{s.frame.Bytes}},
			Regions: []transfer.Region{{Space: s.slab, Frame: s.frame}},
		}
	}
	return out
}

func (inSlab) Release(leases []transfer.LeaseID) []bool { return make([]bool, len(leases)) }

func (inSlab) Renew(leases []transfer.LeaseID, _ time.Duration) []bool {
	held := make([]bool, len(leases))
	for i := range held {
		held[i] = true
	}
	return held
}

func lendUntilKilled(address string) {
	slab, err := host.NewSlab(8<<20, memory.Identity{Incarnation: lenderLife, Nonce: 7})
	if err != nil {
		panic(err)
	}
	s := inSlab{slab, memory.Frame{Offset: 8192, Bytes: 4 << 20}}
	copy(slab.Bytes(s.frame.Offset, s.frame.Bytes), bytes.Repeat([]byte("mill"), 1<<20))
	index, err := objindex.New(16, 0)
	if err != nil {
		panic(err)
	}
	// The header is as long as that of a data frame.
	if !index.Publish(one, bytes.Repeat([]byte("head"), 300), []memory.Frame{s.frame}) {
		panic("the object is not published")
	}
	if _, err := borrow.Listen(address, borrow.ServerConfig{Space: slab, Source: s, Index: index}); err != nil {
		panic(err)
	}
	fmt.Println("lends")
	select {}
}

// startLender starts that peer.
func startLender(t *testing.T) (*exec.Cmd, transfer.Peer) {
	t.Helper()
	peer := transfer.Peer{Worker: 1, Name: "child", Address: fmt.Sprintf("child-of-%d-%d", os.Getpid(), served.Add(1))}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+peer.Address)
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return child, peer
}

func kill(t *testing.T, child *exec.Cmd) {
	t.Helper()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // ends with an error, because it was killed
}

// TestLoansOutliveTheLender: when the lender is killed, the bytes of a loan stay unchanged, and the
// loan says so. When the lender is only stopped, the loan holds until the lease expires, not
// longer.
func TestLoansOutliveTheLender(t *testing.T) {
	take := func(t *testing.T, path *borrow.Path, peer transfer.Peer) transfer.Loan {
		t.Helper()
		loans, err := path.Borrow(t.Context(), peer, []transfer.Ref{one}, false)
		// A busy machine may stand still for longer than the limit of an impatient path.
		for limit := time.Now().Add(transfertest.Patience); errors.Is(err, transfer.ErrStalled) && time.Now().Before(limit); {
			loans, err = path.Borrow(t.Context(), peer, []transfer.Ref{one}, false)
		}
		if err != nil {
			t.Fatal(err)
		}
		if loans[0].Err != nil {
			t.Fatal(loans[0].Err)
		}
		return loans[0]
	}
	t.Run("killed", func(t *testing.T) {
		child, peer := startLender(t)
		path := open(t, borrow.Config{})
		l := take(t, path, peer)
		g, lent := pin(t, path, peer)
		kill(t, child)
		if got := g.Memory.Bytes(lent.Frames[0].Offset, lent.Frames[0].Bytes); !bytes.Equal(got, bytes.Repeat([]byte("mill"), 1<<20)) {
			t.Error("what was found in the index has changed")
		}
		if !g.Held() || !g.End() {
			t.Error("what was found in the index of a dead lender does not hold")
		}
		if got := l.Regions[0].Bytes(); !bytes.Equal(got, bytes.Repeat([]byte("mill"), 1<<20)) {
			t.Error("the bytes have changed")
		}
		if !l.End() {
			t.Error("a lease of a dead lender does not hold")
		}
	})
	t.Run("stopped", func(t *testing.T) {
		child, peer := startLender(t)
		worker := func() ids.WorkerID { return 2 }
		// The leases of this path expire while the test waits; those of the other path do not.
		path := open(t, borrow.Config{Worker: worker, LeaseTTL: 300 * time.Millisecond, StallTimeout: 3 * time.Second})
		early, late := take(t, open(t, borrow.Config{Worker: worker}), peer), take(t, path, peer)
		g, _ := pin(t, path, peer)
		if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if !early.End() {
			t.Error("a lease does not hold though its time has not come")
		}
		<-time.After(600 * time.Millisecond) // no renewal succeeds in this time
		if late.End() {
			t.Error("a lease holds that nobody could renew")
		}
		if !g.End() {
			t.Error("a stopped lender revoked a slot")
		}
		if _, err := path.Borrow(t.Context(), peer, []transfer.Ref{one}, false); err == nil {
			t.Error("a stopped peer lends")
		}
		kill(t, child)
	})
}
