package executor

import (
	"testing"

	"github.com/millrace/millrace/internal/controlpage"
)

// A process that does not tell which function it has called counts as if it had called it.
func TestAProcessThatTellsNothingHasCalledTheFunction(t *testing.T) {
	page, err := controlpage.New()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	q := &queued{ordinal: 1}
	for _, writes := range []bool{false, true} {
		p := &process{page: page, writesCalled: writes}
		if p.called(nil) || p.called(q) == writes {
			t.Errorf("of a process that tells so %v: called %v", writes, p.called(q))
		}
	}
}
