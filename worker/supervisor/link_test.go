package supervisor

import "testing"

func TestSilenceIsCountedInTicks(t *testing.T) {
	var s silence
	for range startTicks {
		if s.tick(0) {
			t.Fatal("too silent before its first sign")
		}
	}
	if !s.tick(0) {
		t.Error("it may take for ever to begin")
	}
	s = silence{}
	for range 10 {
		for range silenceTicks {
			if s.tick(1) {
				t.Fatal("too silent within the limit")
			}
		}
		// A supervisor that stood still sees one tick, however long that was, and then the sign.
		if s.tick(2) {
			t.Fatal("too silent, and yet it gave a sign")
		}
		for range silenceTicks {
			if s.tick(2) {
				t.Fatal("too silent within the limit")
			}
		}
		if !s.tick(2) {
			t.Error("it may be silent for ever")
		}
		if s.tick(1) {
			t.Error("a sign does not count")
		}
	}
}
