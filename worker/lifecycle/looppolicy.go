package lifecycle

import "time"

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
