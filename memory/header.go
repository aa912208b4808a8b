package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The layout of the header page; all numbers are little-endian. The rest of the
// page is zero.
const (
	// Magic are the first bytes of a space.
	Magic = "MILLRACE"
	// layoutVersion changes with the header's layout.
	layoutVersion = 1

	versionAt     = 8  // uint32
	uuidAt        = 16 // 16 bytes
	incarnationAt = 32 // 16 bytes
	nonceAt       = 48 // uint64
	sizeAt        = 56 // uint64, header page included
	headerEnd     = 64
)

// ErrHeader: what is there is not the header page of a space.
var ErrHeader = errors.New("not the header page of a slab")

// Header is what the header page says.
type Header struct {
	Identity Identity
	// SizeBytes is the space's, header page included.
	SizeBytes uint64
}

// Write puts it at the beginning of a zeroed page.
func (h Header) Write(page []byte) {
	copy(page, Magic)
	binary.LittleEndian.PutUint32(page[versionAt:], layoutVersion)
	copy(page[uuidAt:], h.Identity.WorkerUUID[:])
	copy(page[incarnationAt:], h.Identity.Incarnation[:])
	binary.LittleEndian.PutUint64(page[nonceAt:], h.Identity.Nonce)
	binary.LittleEndian.PutUint64(page[sizeAt:], h.SizeBytes)
}

// ParseHeader reads a header page, which may be anything.
func ParseHeader(page []byte) (Header, error) {
	if len(page) < headerEnd || string(page[:len(Magic)]) != Magic {
		return Header{}, fmt.Errorf("%w: it begins with %q", ErrHeader, page[:min(len(page), len(Magic))])
	}
	if n := binary.LittleEndian.Uint32(page[versionAt:]); n != layoutVersion {
		return Header{}, fmt.Errorf("%w: it has layout %d, this build reads %d; run the same version on both sides", ErrHeader, n, layoutVersion)
	}
	h := Header{SizeBytes: binary.LittleEndian.Uint64(page[sizeAt:])}
	copy(h.Identity.WorkerUUID[:], page[uuidAt:])
	copy(h.Identity.Incarnation[:], page[incarnationAt:])
	h.Identity.Nonce = binary.LittleEndian.Uint64(page[nonceAt:])
	return h, nil
}
