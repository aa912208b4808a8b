package slabshare

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
)

// pair returns two connected unix sockets.
func pair(tb testing.TB) (ours, theirs *net.UnixConn) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	var out [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		if err != nil {
			tb.Fatal(err)
		}
		if err := f.Close(); err != nil {
			tb.Fatal(err)
		}
		out[i] = c.(*net.UnixConn)
		tb.Cleanup(func() { _ = c.Close() })
	}
	return out[0], out[1]
}

func framed(messages ...[]byte) (out []byte) {
	for _, m := range messages {
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(m))), m...)
	}
	return out
}

// TestInboxGrowsWithWhatComes: messages of all sizes arrive whole, and memory is allocated for
// received bytes, not for announced lengths.
func TestInboxGrowsWithWhatComes(t *testing.T) {
	ours, theirs := pair(t)
	inbox, err := NewInbox(ours)
	if err != nil {
		t.Fatal(err)
	}
	var sent [][]byte
	for _, n := range []int{0, 1, 100, 65531, 65532, 65533, 1 << 20, 5, 9<<20 + 1, 70000, 3} {
		sent = append(sent, bytes.Repeat([]byte{byte(n)}, n))
	}
	failed := make(chan error, 1)
	go func() {
		_, err := theirs.Write(framed(sent...))
		failed <- err
	}()
	var got [][]byte
	for len(got) < len(sent) {
		if err := inbox.Next(0, func(m []byte) error { got = append(got, bytes.Clone(m)); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	for i := range sent {
		if !bytes.Equal(got[i], sent[i]) {
			t.Errorf("message %d: %d bytes, %d were sent", i, len(got[i]), len(sent[i]))
		}
	}
	if len(inbox.buffer) > keptBytes {
		t.Errorf("%d bytes are kept", len(inbox.buffer))
	}
	if _, err := theirs.Write(append(binary.LittleEndian.AppendUint32(nil, MaxMessageBytes), make([]byte, 100)...)); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	if err := inbox.Next(0, func([]byte) error { return errors.New("nothing is whole") }); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if len(inbox.buffer) > keptBytes {
		t.Errorf("%d bytes for an announcement", len(inbox.buffer))
	}
}

// FuzzInbox: for any bytes in any pieces, the inbox returns exactly the messages that were framed.
func FuzzInbox(f *testing.F) {
	f.Add(framed([]byte("one"), nil, []byte("two")), 3)
	f.Add(binary.LittleEndian.AppendUint32(nil, MaxMessageBytes+1), 1)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		ours, theirs := pair(t)
		inbox, err := NewInbox(ours)
		if err != nil {
			t.Fatal(err)
		}
		piece = max(1, min(piece, 100000))
		go func() {
			for left := b; len(left) > 0; {
				n := min(piece, len(left))
				if _, err := theirs.Write(left[:n]); err != nil {
					break
				}
				left = left[n:]
			}
			_ = theirs.Close() // the reader finds the end
		}()
		rest := b
		for {
			err := inbox.Next(0, func(m []byte) error {
				if want := framed(m); !bytes.HasPrefix(rest, want) {
					t.Errorf("%d bytes that were not framed", len(m))
				} else {
					rest = rest[len(want):]
				}
				return nil
			})
			if err != nil {
				return
			}
		}
	})
}

// FuzzHello: a hello of any form is read or refused.
func FuzzHello(f *testing.F) {
	f.Add(framed([]byte{10, 3, 'a', 'b', 'c'}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(hostv1.BorrowRequest)
		if err := ReadHello(bytes.NewReader(b), m); err == nil && len(b) > 4+MaxHelloBytes && binary.LittleEndian.Uint32(b) > MaxHelloBytes {
			t.Errorf("%d bytes were taken", len(b))
		}
	})
}
