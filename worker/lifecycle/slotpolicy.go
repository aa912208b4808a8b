package lifecycle

import "time"

// Limits of what a slot of native operations does on its own, between the orders of the machine.
const (
	// OpenCalls limits the calls that a slot has started on its device and not finished: enough
	// that the device never waits for the next of many small calls.
	OpenCalls = 8
	// HandoverDelay is how long ended runs wait until the slot has no further short run to start.
	// To hand over several together costs little more than to hand over one, and a peer that waits
	// for one of them does not notice so short a delay.
	HandoverDelay = 200 * time.Microsecond
	// ReportGrace is how long the reports to the scheduler wait for the slot's next run. Sending
	// them wakes a thread; once a call is on the device, that costs nothing.
	ReportGrace = 50 * time.Microsecond
	// SpareBytes limits the memory that a slot allocates in advance for the result of its next
	// call. For a larger result the allocation takes little of the call's time.
	SpareBytes = 4 << 20
	// DefaultMemoryWait is how long an attempt waits for memory unless the worker is told
	// otherwise: longer than peers and disks take to make room.
	DefaultMemoryWait = 30 * time.Second
)
