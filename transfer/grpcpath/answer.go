package grpcpath

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/dataproto"
)

// sender sends a message with data. If park is not nil, the data is in a buffer of a staged space,
// and valid only until sender returns. If that takes longer than holdFor, sender clones the data
// and calls park, which gives the buffers back.
type sender func(m rawframe.Message, park func(), data ...[]byte) error

// smallObject is the size up to which objects are sent together.
const smallObject = 1 << 20

// answer is the objects of one request, on their way to the reader.
type answer struct {
	server *Server
	leased []transfer.Leased
	part   part
	// chunkBytes is the most data of a message.
	chunkBytes uint64
	// together: the data of a message may go on in the objects that follow, if their heads were
	// sent before it.
	together bool
	send     sender
	// out reads the next frames of a staged space, also those of objects that follow, so that many
	// small ones are copied to a buffer together. frames is how many of its frames are left.
	out    *memory.Outflow
	frames int
}

// all sends the objects in their order, in chunks of at most chunkBytes.
func (a *answer) all() error {
	defer a.stop()
	for i := 0; i < len(a.leased); {
		n := a.fellows(i)
		var err error
		if n > 1 {
			err = a.objects(i, n)
		} else {
			n, err = 1, a.object(i)
		}
		if err != nil {
			return err
		}
		i += n
	}
	return nil
}

// refuse sends that an object cannot be read.
func (a *answer) refuse(index int, reason, message string) error {
	a.stop() // it may have read ahead in this object
	return a.send(rawframe.Message{Index: uint32(index), Error: &millracev1.TaskError{Reason: reason, Message: message}}, nil)
}

// object sends one object.
func (a *answer) object(index int) error {
	l := &a.leased[index]
	if l.Err != nil {
		reason := ReasonUnreadable
		if errors.Is(l.Err, transfer.ErrNotHere) {
			reason = ReasonNotHere
		}
		return a.refuse(index, reason, l.Err.Error())
	}
	head := dataproto.HeadTo(l.Head)
	if n := proto.Size(head); n > rawframe.MaxHeadBytes {
		return a.refuse(index, ReasonUnreadable, fmt.Sprintf(
			"object %s: its head has %d bytes with the sizes of %d frames, more than the %d that can be sent", l.Head.Ref, n, len(l.Head.FrameBytes), rawframe.MaxHeadBytes))
	}
	chunk := func(frame int, offset uint64, data []byte, park func()) error {
		err := a.send(rawframe.Message{Index: uint32(index), Head: head, Frame: uint32(frame), Offset: offset}, park, data)
		head = nil
		a.server.out.Add(uint64(len(data)))
		return err
	}
	for frame := range l.Regions {
		err := a.chunks(index, frame, chunk)
		var unreadable *unreadableError
		if errors.As(err, &unreadable) {
			// The bytes that the reader already has are useless.
			return a.refuse(index, ReasonNotHere, err.Error())
		}
		if err != nil {
			return err
		}
	}
	if head == nil {
		return nil
	}
	return a.send(rawframe.Message{Index: uint32(index), Head: head}, nil)
}

// fellows returns how many objects from first on can be sent together: small ones whose frames are
// all in one staged space, or all in memory that the processor addresses, with as many bytes as one
// message may have. 0 and 1 mean that the object is sent alone.
func (a *answer) fellows(first int) (n int) {
	if !a.together || a.part.index > 0 {
		return 1
	}
	var space memory.Staged
	seen := false
	for left := a.chunkBytes; first+n < len(a.leased); n++ {
		l := &a.leased[first+n]
		size := l.Head.Bytes()
		if l.Err != nil || size > min(smallObject, left) || len(l.Head.Header)+8*len(l.Regions) > rawCopyBytes {
			return n
		}
		for _, r := range l.Regions {
			staged, _ := r.Space.(memory.Staged)
			if !seen {
				space, seen = staged, true
			}
			if _, copied := r.Space.(memory.Reader); staged != space || copied && staged == nil {
				return n
			}
		}
		left -= size
	}
	return n
}

// spot names a frame of an object.
type spot struct{ index, frame int }

// objects sends count small objects from first on: their heads, and then all of their data in as
// few messages as possible.
func (a *answer) objects(first, count int) error {
	var spots []spot // of the frames with data
	for i := first; i < first+count; i++ {
		l := &a.leased[i]
		if err := a.send(rawframe.Message{Index: uint32(i), Head: dataproto.HeadTo(l.Head)}, nil); err != nil {
			return err
		}
		for frame, r := range l.Regions {
			if r.Frame.Bytes > 0 {
				spots = append(spots, spot{i, frame})
			}
		}
	}
	if len(spots) == 0 {
		return nil
	}
	if from, ok := a.region(spots[0]).Space.(memory.Staged); ok {
		return a.staged(from, first, count, spots)
	}
	data := make([][]byte, len(spots))
	for i, s := range spots {
		data[i] = a.region(s).Bytes()
	}
	return a.sendTogether(spots[0], nil, data)
}

// staged sends the data of small objects that are in a staged space.
func (a *answer) staged(from memory.Staged, first, count int, spots []spot) error {
	if a.frames == 0 {
		a.read(from, first, 0)
	}
	for _, l := range a.leased[first : first+count] {
		a.frames -= len(l.Regions)
	}
	for len(spots) > 0 {
		// A chunk is a whole frame, since the frames are small.
		chunks, err := a.out.Several(len(spots))
		if err != nil {
			for i := spots[0].index; i < first+count; i++ {
				if err := a.refuse(i, ReasonNotHere, err.Error()); err != nil {
					return err
				}
			}
			return nil
		}
		data := make([][]byte, len(chunks))
		for i, c := range chunks {
			data[i] = c.Data
		}
		if err := a.sendTogether(spots[0], a.out.Park, data); err != nil {
			return err
		}
		spots = spots[len(chunks):]
	}
	return nil
}

func (a *answer) region(s spot) transfer.Region { return a.leased[s.index].Regions[s.frame] }

// sendTogether sends the data of consecutive frames, which begin at a spot.
func (a *answer) sendTogether(at spot, park func(), data [][]byte) error {
	var bytes uint64
	for _, d := range data {
		bytes += uint64(len(d))
	}
	a.server.out.Add(bytes)
	return a.send(rawframe.Message{Index: uint32(at.index), Frame: uint32(at.frame)}, park, data...)
}

// unreadableError: leased bytes could not be read.
type unreadableError struct{ error }

// Unwrap makes errors.Is find the cause.
func (e *unreadableError) Unwrap() error { return e.error }

// chunks calls chunk for the data of one region.
func (a *answer) chunks(index, frame int, chunk func(frame int, offset uint64, data []byte, park func()) error) error {
	region := a.leased[index].Regions[frame]
	begin, end := a.part.bounds(region.Frame.Bytes)
	switch from := region.Space.(type) {
	case memory.Staged:
		if a.frames == 0 {
			a.read(from, index, frame)
		}
		a.frames--
		for offset := begin; offset < end; {
			c, _, err := a.out.Next()
			if err != nil {
				return &unreadableError{err}
			}
			if err := chunk(frame, offset, c.Data, a.out.Park); err != nil {
				return err
			}
			offset += uint64(len(c.Data))
		}
	case memory.Reader:
		for offset, most := begin, min(a.chunkBytes, rawframe.ChunkBytes); offset < end; offset += most {
			data := make([]byte, min(most, end-offset))
			if err := from.ReadInto(region.Frame.Offset+offset, data); err != nil {
				return &unreadableError{err}
			}
			if err := chunk(frame, offset, data, nil); err != nil {
				return err
			}
		}
	default:
		for offset := begin; offset < end; offset += a.chunkBytes {
			data := region.Space.Bytes(region.Frame.Offset+offset, min(a.chunkBytes, end-offset))
			if err := chunk(frame, offset, data, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// read begins to read from a frame of an object on, as long as frames are in the same space.
func (a *answer) read(space memory.Staged, index, frame int) {
	a.stop()
	var frames []memory.Frame
	for ; index < len(a.leased) && a.leased[index].Err == nil; index, frame = index+1, 0 {
		regions := a.leased[index].Regions[frame:]
		same := slices.IndexFunc(regions, func(r transfer.Region) bool { return r.Space != memory.Space(space) })
		if same < 0 {
			same = len(regions)
		}
		for _, r := range regions[:same] {
			begin, end := a.part.bounds(r.Frame.Bytes)
			frames = append(frames, memory.Frame{Offset: r.Frame.Offset + begin, Bytes: end - begin})
		}
		if same < len(regions) {
			break
		}
	}
	a.out, a.frames = memory.NewOutflow(space, frames, a.chunkBytes), len(frames)
}

// stop drops what was read ahead, and gives the buffers back.
func (a *answer) stop() {
	if a.out != nil {
		a.out.Close()
		a.out, a.frames = nil, 0
	}
}
