package descriptors_test

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/descriptors"
)

// pair returns two connected sockets.
func pair(t *testing.T) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	ours, file, err := descriptors.Pair()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := net.FileConn(file)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ours.Close(), theirs.Close()); err != nil {
			t.Error(err)
		}
	})
	return ours, theirs.(*net.UnixConn)
}

func TestDescriptorsComeWithTheFirstByte(t *testing.T) {
	for sent, want := range map[int]int{0: 0, 1: 1, 3: 3, 7: 4} { // of too many, one more than allowed arrives
		to, from := pair(t)
		file, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		var rights []byte
		if sent > 0 {
			fds := make([]int, sent)
			for i := range fds {
				fds[i] = int(file.Fd())
			}
			rights = unix.UnixRights(fds...)
		}
		if _, _, err := to.WriteMsgUnix([]byte("abc"), rights, nil); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		var b [2]byte
		n, files, err := descriptors.Receive(from, b[:], 3, "null")
		if err != nil || n != 2 || string(b[:]) != "ab" || len(files) != want {
			t.Errorf("%d sent: %q, %d files, %v; want %d", sent, b[:n], len(files), err, want)
		}
		for _, f := range files {
			flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("%s is inherited: %#x, %v", f.Name(), flags, err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestTheEndOfAConnectionHasNone(t *testing.T) {
	to, from := pair(t)
	if err := to.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, files, err := descriptors.Receive(from, make([]byte, 4), 1, "none"); n != 0 || len(files) != 0 {
		t.Errorf("%d bytes, %d files, %v", n, len(files), err)
	}
}

// A process that ends before it has read all resets the connection. Then there are no bytes, and
// not minus one.
func TestAResetConnectionHasNoBytes(t *testing.T) {
	ours, theirs, err := descriptors.Pair()
	if err != nil {
		t.Fatal(err)
	}
	_, err = ours.Write([]byte("unread"))
	if err := errors.Join(err, theirs.Close()); err != nil {
		t.Fatal(err)
	}
	n, files, err := descriptors.Receive(ours, make([]byte, 64), 1, "null")
	if n != 0 || len(files) != 0 || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%d bytes and %d files, %v", n, len(files), err)
	}
	if err := ours.Close(); err != nil {
		t.Error(err)
	}
}
