package ipc

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/millrace/millrace/memory/cuda"
)

// Link describes how a peer's memory is read.
type Link struct {
	// Device is the GPU of the memory. Host: it is host memory instead.
	Device cuda.UUID
	Host   bool
	// Latency is the time of a read of 4 KiB, and BytesPerSecond the rate of a read of 4 MiB, by
	// the copy engine when the link was proved. GatherBytesPerSecond is the rate of 4 MiB in 64
	// frames by the gather kernel; 0 if the kernel is not used, for the reason in Why.
	Latency              time.Duration
	BytesPerSecond       float64
	GatherBytesPerSecond float64
	Why                  string
	// Now and GatherNow are moving averages of the rates of whole batches, by the copy engine and
	// by the kernel.
	Now, GatherNow float64
}

// String describes the link in one line.
func (l Link) String() string {
	from := "GPU " + l.Device.String()
	if l.Host {
		from = "host memory"
	}
	s := fmt.Sprintf("%s, copy engine %.1f GB/s, %v", from, l.BytesPerSecond/1e9, l.Latency.Round(100*time.Nanosecond))
	if l.GatherBytesPerSecond > 0 {
		s += fmt.Sprintf(", gather %.1f GB/s", l.GatherBytesPerSecond/1e9)
	} else if l.Why != "" {
		s += ", no gather: " + l.Why
	}
	return s
}

// gigabytes formats a rate with two digits, so that noise does not look like a change.
func gigabytes(rate float64) string {
	rate = max(rate/1e9, 0.01)
	digit := math.Pow(10, math.Floor(math.Log10(rate))-1)
	return strconv.FormatFloat(math.Round(rate/digit)*digit, 'f', max(0, -int(math.Floor(math.Log10(digit)))), 64)
}

// carried is a short form of String, with the current rates.
func (l Link) carried() string {
	s := "copies"
	if l.Host {
		s += " from host memory"
	}
	s += " " + gigabytes(l.Now) + " GB/s"
	switch {
	case l.GatherBytesPerSecond > 0:
		s += ", gather " + gigabytes(l.GatherNow) + " GB/s"
	case l.Why != "":
		s += ", no gather: " + l.Why
	}
	return s
}
