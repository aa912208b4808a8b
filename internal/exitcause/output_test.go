package exitcause

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func TestLastWordsAreReadAfterTheDeadline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close() // stands for a process that inherited the write end
	words := strings.Repeat("last words ", 1000)
	if _, err := w.WriteString(words); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(&Output{File: r})
	if string(got) != words || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d of %d bytes, %v", len(got), len(words), err)
	}
}
