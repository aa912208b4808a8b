package ucx

import (
	"encoding/binary"
	"errors"

	"github.com/millrace/millrace/transfer"
)

// leaseAnswer is an answer to a lease request, while it is composed.
type leaseAnswer struct {
	c      *Context
	leased []transfer.Leased
	// inline is the size up to which the bytes of an object are part of the answer; negative: none
	// are.
	inline int
	kinds  []grantKind
	texts  []string
	bytes  int
}

// answer decides what the answer says of each object.
func (c *Context) answer(leased []transfer.Leased, noInline bool) *leaseAnswer {
	a := &leaseAnswer{c: c, leased: leased, inline: c.config.InlineBytes, kinds: make([]grantKind, len(leased)), texts: make([]string, len(leased))}
	if noInline {
		a.inline = -1
	}
	inline := 0
	for i := range leased {
		a.kinds[i], a.texts[i] = a.kind(&leased[i], inlineRoom-inline)
		if i > 0 && a.bytes+a.size(i) > answerRoom {
			a.kinds[i] = grantLater
		}
		if a.kinds[i] == grantInline {
			inline += int(leased[i].Head.Bytes())
		}
		a.bytes += a.size(i)
	}
	return a
}

// kind decides about one object; room is what is left of inlineRoom. The text is the reason of an
// error.
func (a *leaseAnswer) kind(l *transfer.Leased, room int) (grantKind, string) {
	switch {
	case errors.Is(l.Err, transfer.ErrNotHere):
		return grantMissing, ""
	case l.Err != nil:
		return grantError, l.Err.Error()
	}
	inPlace, inSlab := true, true
	for _, r := range l.Regions {
		if r.Frame.Bytes > 0 {
			inSlab = inSlab && r.Space == a.c.config.Space
			inPlace = inPlace && r.Bytes() != nil
		}
	}
	n := l.Head.Bytes()
	switch {
	case inPlace && (n == 0 || n <= uint64(max(0, min(room, a.inline)))):
		return grantInline, ""
	case !inSlab:
		return grantElsewhere, "it does not lie in the registered slab"
	}
	return grantLease, ""
}

// size returns the encoded size of the grant for one object.
func (a *leaseAnswer) size(i int) int {
	h := a.leased[i].Head
	switch a.kinds[i] {
	case grantLease:
		return describedBytes(h) + 8 + 8*len(h.FrameBytes)
	case grantInline:
		return describedBytes(h) + int(h.Bytes())
	case grantError, grantElsewhere:
		return 1 + 4 + len(a.texts[i])
	case grantMissing, grantLater:
	}
	return 1
}

// append encodes the grants; see reader.grant.
func (a *leaseAnswer) append(b []byte) []byte {
	for i := range a.leased {
		l := &a.leased[i]
		b = append(b, byte(a.kinds[i]))
		switch a.kinds[i] {
		case grantLease:
			b = binary.LittleEndian.AppendUint64(b, uint64(l.Lease))
			b = appendDescription(b, l.Head)
			for _, r := range l.Regions {
				b = binary.LittleEndian.AppendUint64(b, r.Frame.Offset)
			}
		case grantInline:
			b = appendDescription(b, l.Head)
			for _, r := range l.Regions {
				b = append(b, r.Bytes()...)
			}
		case grantError, grantElsewhere:
			b = binary.LittleEndian.AppendUint32(b, uint32(len(a.texts[i])))
			b = append(b, a.texts[i]...)
		case grantMissing, grantLater:
		}
	}
	return b
}

// leases returns the leases that the reader will hold, and those that end now (spent), with the
// indices of their objects. The objects of spent leases were copied into the answer, or are not
// part of it.
func (a *leaseAnswer) leases() (held, spent []transfer.LeaseID, objects []int) {
	for i, l := range a.leased {
		switch {
		case l.Lease == 0:
		case a.kinds[i] == grantLease:
			held = append(held, l.Lease)
		default:
			spent, objects = append(spent, l.Lease), append(objects, i)
			a.leased[i].Lease = 0
		}
	}
	return held, spent, objects
}

// confirm records which of the objects were protected during the copy. It returns false if the
// composed answer must not be sent.
func (a *leaseAnswer) confirm(objects []int, ok []bool) bool {
	good := true
	for k, i := range objects {
		if !ok[k] && a.kinds[i] == grantInline {
			a.bytes -= a.size(i)
			a.kinds[i] = grantMissing
			a.bytes += a.size(i)
			good = false
		}
	}
	return good
}
