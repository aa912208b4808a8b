package ucx

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// UCX parses the addresses and keys of peers without checks. It aborts its process on an address of
// another version, and reads beyond the end of a truncated one. So they travel in an envelope of
// ours, with the kind of its content, the version of UCX that made it, its length, and a checksum
// over everything. Only the content of a valid envelope is passed to UCX. An envelope is not a
// signature: PeerService.Connect requires the token of a worker first.
//
// Its layout, little-endian: envelopeMagic, kind (1 byte), major, minor and release of UCX (2 bytes
// each), PID of the process (4 bytes) and the number of its PID namespace (8 bytes), length of the
// content (4 bytes), CRC-32C of everything before it and of the content (4 bytes), content.
const (
	envelopeMagic = "MILLUCX1"
	envelopeBytes = len(envelopeMagic) + 1 + 3*2 + 4 + 8 + 4 + 4
	// maxContentBytes is larger than an address with hundreds of devices.
	maxContentBytes = 1 << 20
)

type contentKind byte

const (
	contentAddress contentKind = iota + 1
	contentKey
)

// String describes the kind in errors.
func (k contentKind) String() string {
	switch k {
	case contentAddress:
		return "an address"
	case contentKey:
		return "a key of memory"
	}
	return fmt.Sprintf("content of kind %d", byte(k))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal puts an address or key of UCX into an envelope of this process.
func seal(kind contentKind, v version, content []byte) []byte {
	return sealBy(thisProcess(), kind, v, content)
}

func sealBy(own process, kind contentKind, v version, content []byte) []byte {
	b := append(make([]byte, 0, envelopeBytes+len(content)), envelopeMagic...)
	b = append(b, byte(kind))
	for _, n := range []uint{v.major, v.minor, v.release} {
		b = binary.LittleEndian.AppendUint16(b, uint16(n))
	}
	b = binary.LittleEndian.AppendUint32(b, own.pid)
	b = binary.LittleEndian.AppendUint64(b, own.namespace)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(content)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, content))
	return append(b, content...)
}

// unseal returns the content of a valid envelope, and the version of UCX that made it.
func unseal(kind contentKind, envelope []byte) (content []byte, v version, err error) {
	if len(envelope) < envelopeBytes || string(envelope[:len(envelopeMagic)]) != envelopeMagic {
		return nil, v, fmt.Errorf("%w: %d bytes that are not %s as a worker of this version sends it", ErrNoConnection, len(envelope), kind)
	}
	fields, sum := envelope[len(envelopeMagic):envelopeBytes-4], envelope[envelopeBytes-4:envelopeBytes]
	content = envelope[envelopeBytes:]
	v = version{uint(binary.LittleEndian.Uint16(fields[1:])), uint(binary.LittleEndian.Uint16(fields[3:])), uint(binary.LittleEndian.Uint16(fields[5:]))}
	length := binary.LittleEndian.Uint32(fields[19:])
	crc := crc32.Update(crc32.Checksum(envelope[:envelopeBytes-4], castagnoli), castagnoli, content)
	switch {
	case contentKind(fields[0]) != kind:
		return nil, v, fmt.Errorf("%w: %s in place of %s", ErrNoConnection, contentKind(fields[0]), kind)
	case length == 0 || length > maxContentBytes || uint64(length) != uint64(len(content)):
		return nil, v, fmt.Errorf("%w: %s that should have %d bytes has %d", ErrNoConnection, kind, length, len(content))
	case binary.LittleEndian.Uint32(sum) != crc:
		return nil, v, fmt.Errorf("%w: %s whose checksum is wrong", ErrNoConnection, kind)
	}
	return content, v, nil
}

// sender returns the process that made an envelope. REQUIRES: the envelope is valid.
func sender(envelope []byte) process {
	fields := envelope[len(envelopeMagic):]
	return process{pid: binary.LittleEndian.Uint32(fields[7:]), namespace: binary.LittleEndian.Uint64(fields[11:])}
}

// unsealed is unseal, and also checks that the version works together with ours.
func (v version) unsealed(kind contentKind, envelope []byte) ([]byte, error) {
	content, theirs, err := unseal(kind, envelope)
	if err != nil {
		return nil, err
	}
	return content, v.compatible(theirs)
}

// compatible compares major and minor: all releases of one minor version work together.
func (v version) compatible(theirs version) error {
	if theirs.major != v.major || theirs.minor != v.minor {
		return fmt.Errorf("%w: %s here, %s there; give both the same libucp.so.0", ErrVersion, v, theirs)
	}
	return nil
}

// Acceptable makes all checks of a request for a new connection that need no open context. So
// malformed requests and peers with another version are refused before UCX listens. The error is a
// gRPC status.
func (c Config) Acceptable(reader *workerv1.Endpoint) error {
	if err := c.wellFormed(reader); err != nil {
		return err
	}
	// Loading the library opens nothing: no device, socket or thread.
	v, err := c.load()
	if err != nil {
		return status.Error(codes.Unimplemented, err.Error())
	}
	_, err = v.acceptable(reader)
	return err
}

// wellFormed makes the checks that need no library. Its error is a gRPC status.
func (c Config) wellFormed(reader *workerv1.Endpoint) error {
	if c.Source == nil {
		return status.Error(codes.Unimplemented, "ucx: nothing is served here")
	}
	if reader == nil {
		// Readers recognize by this code that a source does not know their request.
		return status.Error(codes.FailedPrecondition, "ucx: a request without an endpoint, and nothing else that is known here")
	}
	if len(reader.GetAddress()) == 0 || reader.GetToken() == 0 {
		return status.Error(codes.InvalidArgument, "ucx: a reader without address or token")
	}
	if _, _, err := unseal(contentAddress, reader.GetAddress()); err != nil {
		return refusal(err)
	}
	return nil
}

// acceptable returns the address of a reader's endpoint. Its error is a gRPC status.
func (v version) acceptable(reader *workerv1.Endpoint) ([]byte, error) {
	if err := v.check(reader.GetVersion()); err != nil {
		return nil, refusal(err)
	}
	address, err := v.unsealed(contentAddress, reader.GetAddress())
	if err != nil {
		return nil, refusal(err)
	}
	return address, nil
}

// check compares a version in the text form that peers send.
func (v version) check(theirs string) error {
	var other version
	if _, err := fmt.Sscanf(theirs, "%d.%d.%d", &other.major, &other.minor, &other.release); err != nil {
		return fmt.Errorf("%w: the peer says %.40q", ErrVersion, theirs)
	}
	return v.compatible(other)
}
