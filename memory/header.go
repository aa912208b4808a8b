package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The layout of the header page. All numbers are little-endian. The rest of the page is zero.
const (
	// Magic is the first bytes of a space.
	Magic = "MILLRACE"
	// layoutVersion must change when the layout of the header changes.
	layoutVersion = 1

	versionAt     = 8  // uint32
	uuidAt        = 16 // 16 bytes
	incarnationAt = 32 // 16 bytes
	nonceAt       = 48 // uint64
	sizeAt        = 56 // uint64, header page included
	headerEnd     = 64
)

// ErrHeader: the bytes are not the header page of a space.
var ErrHeader = errors.New("not the header page of a slab")

// Header is the content of the header page.
type Header struct {
	Identity Identity
	// SizeBytes is the size of the space, header page included.
	SizeBytes uint64
}

// Write writes the header to the beginning of a zeroed page.
func (h Header) Write(page []byte) {
	copy(page, Magic)
	binary.LittleEndian.PutUint32(page[versionAt:], layoutVersion)
	copy(page[uuidAt:], h.Identity.WorkerUUID[:])
	copy(page[incarnationAt:], h.Identity.Incarnation[:])
	binary.LittleEndian.PutUint64(page[nonceAt:], h.Identity.Nonce)
	binary.LittleEndian.PutUint64(page[sizeAt:], h.SizeBytes)
}

// ParseHeader reads a header page. The page may have any content.
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
