package sched_test

import (
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedtest"
)

// TestScripts runs testdata/scripts/*: the verbs are listed at schedtest.Script. Run with -rewrite to accept new output.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		t.Helper()
		s := schedtest.NewScript(sched.Config{AssignAhead: 2})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			return s.Run(t, d)
		})
	})
}
