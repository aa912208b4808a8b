package ucx

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/transfer"
)

// The kinds of errors of this package, in addition to those of package transfer.
var (
	// ErrUnavailable: UCX cannot be used in this process.
	ErrUnavailable = errors.New("ucx is not available")
	// ErrNoConnection: this path cannot reach that peer as both are now; other paths may. It is a
	// transfer.ErrUnreachable.
	ErrNoConnection = fmt.Errorf("%w: no ucx connection", transfer.ErrUnreachable)
	// ErrVersion: the peer has an incompatible version of UCX. It is an ErrNoConnection.
	ErrVersion = fmt.Errorf("%w: versions differ", ErrNoConnection)
	// ErrProof: the bytes read through the connection are not from the memory that the peer
	// described. It is an ErrNoConnection.
	ErrProof = fmt.Errorf("%w: not the memory that the peer described", ErrNoConnection)
)
