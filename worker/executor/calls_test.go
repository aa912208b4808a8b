package executor

import (
	"errors"
	"testing"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
)

// TestCallsAreLimited: calls that were given up count until their functions return.
func TestCallsAreLimited(t *testing.T) {
	c := &calls{open: make(map[uint64]chan *executorv1.ExecutorReturn)}
	for range maxOpenCalls {
		if _, _, err := c.add(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := c.add(); !errors.Is(err, errTooMany) {
		t.Errorf("one more call: %v", err)
	}
	c.answer(&executorv1.ExecutorReturn{CallId: 7})
	if _, _, err := c.add(); err != nil {
		t.Errorf("after one has returned: %v", err)
	}
	c.end(nil)
	if _, _, err := c.add(); !errors.Is(err, errEnded) {
		t.Errorf("after the end of the process: %v", err)
	}
}
