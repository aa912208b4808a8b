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

// Limits of the worker's loop, and of its parts that speak with the scheduler and with peers.
const (
	// Beat is the time between two reports on the state of the worker. Five are lost before the
	// scheduler takes a silent worker for lost (the default lease of package members is 5 s).
	Beat = time.Second
	// Tick is the time between two Ticked while there are attempts: a quarter of the default of
	// Config.StartedAfter, so that an attempt is reported as started little later.
	Tick = 5 * time.Millisecond
	// AloneGrace is how long a worker that was asked to leave, and runs nothing, waits for an
	// unreachable scheduler: as long as the scheduler would wait for it.
	AloneGrace = 5 * time.Second
	// DefaultSchedulerTimeout is how long the scheduler may be unreachable unless the worker is
	// told otherwise: a host has restarted it by then.
	DefaultSchedulerTimeout = time.Minute
	// DefaultBorrowWait is how long peers may take to lend inputs unless the worker is told
	// otherwise. A peer answers within milliseconds unless it is stopped or overloaded, and to
	// fetch the inputs takes less than this.
	DefaultBorrowWait = 2 * time.Second
	// Farewell is how long a leaving worker tries to deliver its last message: a live scheduler
	// takes it within milliseconds, and a supervisor waits for the end.
	Farewell = 2 * time.Second
	// RenewLimit is how long running attempts may take to end when the scheduler was started anew.
	// After that time the worker ends itself, and its next incarnation begins with nothing.
	RenewLimit = 30 * time.Second

	// InlineAssignments is the largest number of assignments in a message that the receiver of the
	// session handles itself. A larger message is real work: the owner goroutine handles it in
	// parallel to the receiver.
	InlineAssignments = 4
	// InlineRounds limits how often a goroutine that steps the machine in place of the owner
	// continues because new events have arrived: it has duties of its own.
	InlineRounds = 4
	// BriefWait is the longest wait during which a goroutine keeps its other duties: another
	// goroutine would take as long to take them over.
	BriefWait = 50 * time.Microsecond

	// RescueWait is the longest time that a rescue waits for memory in vain, for all its objects
	// together: the scheduler waits 2 s (RescueTimeout of package sched), beside the time that the
	// copies take.
	RescueWait = time.Second
	// RescueLimit ends a rescue that hangs, long after the scheduler has given it up.
	RescueLimit = 30 * time.Second
)
