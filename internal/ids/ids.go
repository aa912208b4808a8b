// Package ids is an Interface: the identifiers that scheduler, worker and clients exchange. Each is
// a type of its own, so that the compiler rejects a task where a worker is expected. The package
// has no code except for printing. The process that makes an id, which the comment of each type
// names, also ensures what that comment says about reuse.
package ids

import (
	"encoding/hex"
	"strconv"
)

// TaskID names one task. The scheduler gives it out and never reuses it during its life, so a late
// message about a released task cannot be mistaken for one about another task. 0 is no task.
type TaskID uint64

// GraphID names one graph, with the same rules as TaskID. 0 is no graph.
type GraphID uint64

// WorkerID is the number that the scheduler gives to a worker incarnation when it registers. The
// incarnation keeps the number when it reconnects, and gets another one if it was declared lost
// before. Numbers are never reused during the scheduler's life. 0 is no worker.
type WorkerID uint32

// ClientID names one client session, with the same rules as TaskID. 0 is no client.
type ClientID uint64

// OpID is the index of an op in the scheduler's table of ops. The scheduler reuses the index of an
// op that has no tasks. A worker knows what an OpID means from an OpDefinition of its session.
type OpID uint32

// Attempt counts the assignments of one task to any worker: the first is 1, and each further one
// adds 1. The generation of an object is the attempt that made it; data that a client wrote has 1.
// 0: the task was not assigned.
type Attempt uint32

// Item names one item of an object that is a list, counted from 1. 0: the whole object.
type Item uint32

// Incarnation is the name of one life of a worker process: the text of a random UUID, version 7.
// The supervisor makes it for a process that it starts. A worker without a supervisor makes its
// own. Empty means unknown.
type Incarnation string

// FunctionHash is the SHA-256 of a serialized function. Messages name the function by it. The zero
// value means no function.
type FunctionHash [32]byte

// String returns t and the number, as in t42.
func (id TaskID) String() string { return "t" + strconv.FormatUint(uint64(id), 10) }

// String returns g and the number, as in g7.
func (id GraphID) String() string { return "g" + strconv.FormatUint(uint64(id), 10) }

// String returns w and the number, as in w3.
func (id WorkerID) String() string { return "w" + strconv.FormatUint(uint64(id), 10) }

// String returns c and the number, as in c5.
func (id ClientID) String() string { return "c" + strconv.FormatUint(uint64(id), 10) }

// String returns o and the number, as in o9.
func (id OpID) String() string { return "o" + strconv.FormatUint(uint64(id), 10) }

// String returns a and the number, as in a1.
func (a Attempt) String() string { return "a" + strconv.FormatUint(uint64(a), 10) }

// String returns nothing for the whole object, and otherwise /i and the number, as in /i3.
func (i Item) String() string {
	if i == 0 {
		return ""
	}
	return "/i" + strconv.FormatUint(uint64(i), 10)
}

// String returns the text itself, or "unknown" when it is empty.
func (i Incarnation) String() string {
	if i == "" {
		return "unknown"
	}
	return string(i)
}

// String returns the 64 hexadecimal digits.
func (h FunctionHash) String() string { return hex.EncodeToString(h[:]) }
