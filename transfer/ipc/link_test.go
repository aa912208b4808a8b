//go:build cgo && linux

package ipc

import "testing"

func TestLinksAreDescribedByTwoDigits(t *testing.T) {
	for want, l := range map[string]Link{
		"copies 370 GB/s, gather 9.1 GB/s":                {Now: 372.4e9, GatherBytesPerSecond: 1, GatherNow: 9.13e9},
		"copies 12 GB/s, no gather: switched off":         {Now: 11.6e9, Why: "switched off"},
		"copies from host memory 0.50 GB/s":               {Now: 0.5e9, Host: true},
		"copies from host memory 1000 GB/s, no gather: x": {Now: 999.9e9, Host: true, Why: "x"},
	} {
		if got := l.carried(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
