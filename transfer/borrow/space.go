package borrow

import (
	"errors"
	"os"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/board"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// space is a peer's memory in this process.
type space struct {
	data     []byte
	identity memory.Identity
	// file is what data maps, opened for reading only.
	file *os.File
}

var _ Memory = (*space)(nil)

// mapped is Config.Open for what the processor addresses.
func mapped(_ transfer.Peer, welcome *millracev1.BorrowWelcome, file *os.File, turn *board.Turn) (Memory, error) {
	if file == nil {
		return nil, errors.New("its memory lies on a GPU")
	}
	data, err := slabshare.Map(file, welcome, false)
	if err != nil {
		return nil, err
	}
	if turn != nil {
		_ = turn.Close() // processors need not take turns
	}
	return &space{data: data, file: file, identity: Identity(welcome)}, nil
}

// Identity is what a welcome says.
func Identity(welcome *millracev1.BorrowWelcome) memory.Identity {
	id := memory.Identity{Nonce: welcome.GetNonce()}
	copy(id.WorkerUUID[:], welcome.GetWorkerUuid())
	copy(id.Incarnation[:], welcome.GetIncarnation())
	return id
}

// Close is part of Memory. The pages of the dead are as good as others.
func (s *space) Close(bool) {
	_ = slabshare.Unmap(s.data) // nothing could be done about it
	_ = s.file.Close()          // nothing was written
}

// Size is part of memory.Space.
func (s *space) Size() uint64 { return uint64(len(s.data)) }

// Identity is part of memory.Space.
func (s *space) Identity() memory.Identity { return s.identity }

// Bytes is part of memory.Space, but for reading only.
func (s *space) Bytes(off, n uint64) []byte { return s.data[off : off+n : off+n] }

// FD is part of memory.Space. It cannot be mapped for writing, and stays open as
// long as a loan lasts.
func (s *space) FD() int { return int(s.file.Fd()) }
