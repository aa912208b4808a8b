package ucx

import "testing"

// TestScratchThatDevicesKnowKeepsItsPages: a device that has the pages registered goes on to write
// to them. Other scratch memory gives its pages back.
func TestScratchThatDevicesKnowKeepsItsPages(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		s, err := newHostScratch(pinned)
		if err != nil {
			t.Fatal(err)
		}
		s.host[proofBytes] = 1
		s.tidy(proofBytes)
		if kept := s.host[proofBytes] == 1; kept != pinned {
			t.Errorf("known to devices %v: the page was kept: %v", pinned, kept)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}
