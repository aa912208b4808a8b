package loop_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

// templateOf makes a template with arguments of so many bytes.
func templateOf(hash byte, bytes int) *templates.Template {
	t := &templates.Template{
		Hash: templates.Hash{hash}, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}}, Used: []bool{true},
		Tasks: []templates.Task{{Key: "k", Arguments: make([]byte, bytes)}},
	}
	t.Seal()
	return t
}

// define defines a template.
func (s *start) define(namespace string, hash byte) {
	s.t.Helper()
	_, err := s.DefineTemplate(s.t.Context(), namespace, templateOf(hash, 100))
	s.must(err)
}

// A template that was defined is known after a restart, until others displace it. With a disk that
// fails, a new one is refused, and the known ones are used. (docs/running.md.)
func TestTemplatesOutliveTheScheduler(t *testing.T) {
	s := begin(t, newDirectory(t), loop.Config{Templates: templates.Limits{Templates: 2, Bytes: 1 << 20, AllBytes: 1 << 20}})
	for hash := range byte(3) {
		s.define("n", hash)
	}
	s.define("other", 0)
	s.must(s.Recorded(t.Context()))
	check := func() {
		t.Helper()
		for hash := range byte(3) {
			known := s.Template("n", templates.Hash{hash})
			if (known != nil) != (hash > 0) {
				t.Errorf("template %d is known: %t", hash, known != nil)
			}
			if want := templateOf(hash, 100); known != nil && (known.Bytes != want.Bytes || known.Tasks[0].Key != "k" || len(known.Tasks[0].Arguments) != 100) {
				t.Errorf("template %d is %+v", hash, known)
			}
		}
		if s.Template("other", templates.Hash{0}) == nil || s.Template("other", templates.Hash{1}) != nil {
			t.Error("the other namespace has other templates")
		}
	}
	check()
	s = s.restart()
	check()
	s = s.stop()
	check()

	s.directory.breakNow(errDisk)
	for range 2 { // The disk is known to fail after the first.
		_, _ = s.OpenClient(t.Context(), schedapi.ClientSpec{Namespace: "n"})
	}
	_, err := s.DefineTemplate(t.Context(), "n", templateOf(9, 1))
	var journal *schedapi.Error
	if !errors.As(err, &journal) || journal.Kind != schedapi.ErrJournal || s.Template("n", templates.Hash{9}) != nil {
		t.Errorf("with a full disk a definition ends with %v", err)
	}
	if known, err := s.DefineTemplate(t.Context(), "n", templateOf(1, 100)); err != nil || known != s.Template("n", templates.Hash{1}) {
		t.Errorf("with a full disk a known template ends with %v", err)
	}
}

// Templates count in the scheduler's memory, of which they use a quarter at most.
func TestTemplatesCountInTheMemoryOfTheScheduler(t *testing.T) {
	const limit = 100_000
	l := begin(t, newDirectory(t), loop.Config{Machine: sched.Config{MemoryBytes: limit}})
	ctx := t.Context()
	submit := func(bytes int) error {
		_, err := l.Submit(ctx, schedapi.Submission{Graph: sched.GraphSubmitted{
			Namespace: "n", Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}}, Tasks: []sched.TaskSpec{{Key: "k", Hold: true, Arguments: make([]byte, bytes)}},
		}})
		return err
	}
	var invalid *schedapi.Error
	if _, err := l.DefineTemplate(ctx, "n", templateOf(1, limit/4)); !errors.As(err, &invalid) || invalid.Kind != schedapi.ErrInvalidField {
		t.Errorf("a template of a quarter of the memory: %v", err)
	}
	if _, err := l.DefineTemplate(ctx, "n", templateOf(1, limit/5)); err != nil {
		t.Fatal(err)
	}
	var full *sched.Error
	if err := submit(limit * 9 / 10); !errors.As(err, &full) || full.Kind != sched.ErrFull || full.Object != "memory" {
		t.Errorf("a submission for which the template leaves no room: %v", err)
	}
	if err := submit(limit * 7 / 10); err != nil {
		t.Fatal(err)
	}
	_, err := l.DefineTemplate(ctx, "n", templateOf(2, limit/5))
	if !errors.As(err, &full) || full.Kind != sched.ErrFull || full.Object != "memory" || !strings.Contains(err.Error(), "of 100000 bytes") {
		t.Errorf("a template for which the tasks leave no room: %v", err)
	}
}
