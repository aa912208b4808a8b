package borrow

import (
	"errors"
	"os"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
)

// space is a peer's memory, mapped into this process.
type space struct {
	data     []byte
	identity memory.Identity
	// file is the descriptor of the memory that data maps, open for reading only.
	file *os.File
}

var _ Memory = (*space)(nil)

// mapped is the default of Config.Open: it maps memory that the CPU can address.
func mapped(_ transfer.Peer, welcome *hostv1.BorrowWelcome, file *os.File, token *objindex.EgressToken) (Memory, error) {
	if file == nil {
		return nil, errors.New("its memory lies on a GPU")
	}
	data, err := slabshare.Map(file, welcome, false)
	if err != nil {
		return nil, err
	}
	if token != nil {
		_ = token.Close() // reads by the CPU need no egress token
	}
	return &space{data: data, file: file, identity: Identity(welcome)}, nil
}

// Identity returns the identity of the memory that a welcome describes.
func Identity(welcome *hostv1.BorrowWelcome) memory.Identity {
	id := memory.Identity{Nonce: welcome.GetNonce()}
	copy(id.WorkerUUID[:], welcome.GetWorkerUuid())
	copy(id.Incarnation[:], welcome.GetIncarnation())
	return id
}

// Close is part of Memory. Whether the peer is dead makes no difference here.
func (s *space) Close(bool) {
	_ = slabshare.Unmap(s.data) // no recovery is possible
	_ = s.file.Close()          // nothing was written
}

// Size is part of memory.Space.
func (s *space) Size() uint64 { return uint64(len(s.data)) }

// Identity is part of memory.Space.
func (s *space) Identity() memory.Identity { return s.identity }

// Bytes is part of memory.Space. The bytes may only be read.
func (s *space) Bytes(off, n uint64) []byte { return s.data[off : off+n : off+n] }

// FD is part of memory.Space. The descriptor cannot be mapped for writing. It stays open as long as
// a loan lasts.
func (s *space) FD() int { return int(s.file.Fd()) }
