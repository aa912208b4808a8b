package sched_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedtest"
)

// TestScripts runs testdata/scripts/*. schedtest.Script lists the verbs. Pre-assignment
// (Config.Preassigned) is on only in scripts named preassign* or cross*, and Config.Facts in those
// named rows*. Run with -rewrite to accept new output.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		t.Helper()
		config := sched.Config{QueueDepth: 2, Preassigned: -1}
		switch name := filepath.Base(path); {
		case strings.HasPrefix(name, "preassign"):
			config.Preassigned = 2
		case strings.HasPrefix(name, "cross"):
			config.Preassigned = 0
		case strings.HasPrefix(name, "rows"):
			config.Facts = true
		}
		s := schedtest.NewScript(config)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			return s.Run(t, d)
		})
	})
}
