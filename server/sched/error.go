package sched

import (
	"fmt"

	"github.com/millrace/millrace/internal/ids"
)

// ErrorKind classifies a refused request.
type ErrorKind uint8

// Kinds of request errors. The adapter maps each to a status code and a reason.
const (
	ErrGraphHasCycle ErrorKind = iota + 1
	ErrUnknownInput
	ErrKeyConflict
	ErrDuplicateKey
	ErrUnknownClient
	ErrUnknownTask
	ErrUnknownGraph
	ErrGraphRunning
	ErrNoWorkerFits
	ErrInvalidField
	ErrUnknownDataset
	// ErrRequestConflict means that a request id was used again with other tasks.
	ErrRequestConflict
	// ErrFull means that the scheduler holds as many bytes as it may. The same request may be
	// accepted later.
	ErrFull
	ErrUnknownWorker
	// ErrWorkerLeaving means that the worker's process is about to end, so that no order can change
	// it.
	ErrWorkerLeaving
	// ErrNotSupervised means that nothing would start the worker again.
	ErrNotSupervised
	// ErrRebalanceRunning means that another rebalance is in progress.
	ErrRebalanceRunning
	// ErrWorkerNotActive means that the worker cannot take part, because it is not active.
	ErrWorkerNotActive
)

// Error refuses a whole request; nothing changed.
type Error struct {
	Kind ErrorKind
	// Object is the key, graph, client or field that the error is about.
	Object string
	// Message says what failed, where, why, and how to correct it.
	Message string
	// Keys are the tasks of a cycle, in order; nil for other errors.
	Keys []string
}

func (e *Error) Error() string { return e.Message }

func invalid(field, format string, args ...any) *Error {
	return &Error{Kind: ErrInvalidField, Object: field, Message: fmt.Sprintf(format, args...)}
}

func unknownClient(id ids.ClientID) *Error {
	return &Error{Kind: ErrUnknownClient, Object: id.String(),
		Message: "client " + id.String() + " is not known: its lease ended; open a new one and submit again"}
}

func unknownGraph(id ids.GraphID) *Error {
	return &Error{Kind: ErrUnknownGraph, Object: id.String(),
		Message: "graph " + id.String() + " is not known: it was released, or never submitted to this scheduler"}
}

func unknownTask(id ids.TaskID) *Error {
	return &Error{Kind: ErrUnknownTask, Object: id.String(),
		Message: fmt.Sprintf("task %s is not known: everybody released it, or it was never submitted to this scheduler", id)}
}

func unknownKey(namespace, key string) *Error {
	return &Error{Kind: ErrUnknownTask, Object: key,
		Message: fmt.Sprintf("no task has key %s in namespace %q: it was never submitted, or everybody released it", key, namespace)}
}

func duplicateKey(key string) *Error {
	return &Error{Kind: ErrDuplicateKey, Object: key,
		Message: fmt.Sprintf("key %s is used by two tasks of the submission; give each task a key of its own", key)}
}
