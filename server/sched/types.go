package sched

import "github.com/millrace/millrace/server/copies"

// WorkerState is the state of a worker incarnation.
type WorkerState = copies.WorkerState

// Worker states.
const (
	WorkerStateActive       = copies.WorkerStateActive
	WorkerStateDisconnected = copies.WorkerStateDisconnected
	WorkerStateDraining     = copies.WorkerStateDraining
	WorkerStateDrained      = copies.WorkerStateDrained
	WorkerStateLost         = copies.WorkerStateLost
)
