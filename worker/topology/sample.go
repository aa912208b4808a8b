package topology

// Sample is the state of a GPU at one time. Values that the driver does not report are 0.
type Sample struct {
	UsedBytes, TotalBytes uint64
	// UtilizationPercent is the share of time in which kernels run, MemoryPercent the share in
	// which the memory is accessed.
	UtilizationPercent, MemoryPercent int
	ClockMHz, MemoryClockMHz          int
	// Throttled names the reasons for a reduced clock rate.
	Throttled []string
	Watts     float64
	Celsius   int
	// CorrectedECC and UncorrectedECC are counted since the driver was loaded.
	CorrectedECC, UncorrectedECC uint64
	Processes                    []Process
	// NVLink counts the bytes of all NVLinks since the driver was loaded. Nil: the driver does not
	// count them.
	NVLink *Carried
}

// Carried counts the bytes that a GPU or a network device has received and sent.
type Carried struct {
	ReceivedBytes, SentBytes uint64
}

// Rates are the bytes per second that a GPU or a network device receives and sends.
type Rates struct {
	Received, Sent float64
}

// Since returns the rates since an earlier look at the same counters. Nil: they have started again
// in between, or the time is of no use.
func (c *Carried) Since(earlier *Carried, seconds float64) *Rates {
	if c == nil || earlier == nil || seconds <= 0 || c.ReceivedBytes < earlier.ReceivedBytes || c.SentBytes < earlier.SentBytes {
		return nil
	}
	return &Rates{
		Received: float64(c.ReceivedBytes-earlier.ReceivedBytes) / seconds,
		Sent:     float64(c.SentBytes-earlier.SentBytes) / seconds,
	}
}

// Process is a process that uses the GPU.
type Process struct {
	PID       int
	UsedBytes uint64
}
