package supervisor

import (
	"bytes"
	"testing"
)

func TestRecordsInJSONAreNotChanged(t *testing.T) {
	var b bytes.Buffer
	o := &lines{to: &b}
	o.write("host-0", []byte("{\"time\":\"2026-01-01T00:00:00Z\",\"worker\":\"host-0\"}\nprinted {\"time\":\n"))
	if want := "{\"time\":\"2026-01-01T00:00:00Z\",\"worker\":\"host-0\"}\n[host-0] printed {\"time\":\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
