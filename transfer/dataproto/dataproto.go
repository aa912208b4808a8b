// Package dataproto is an Adapter: it converts the values of package transfer to and from the
// messages that DataService and the borrow protocol share.
package dataproto

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/transfer"
)

const (
	// maxHeader bounds the header of an object in bytes, and maxFrames the number of its frames.
	// The head of an object, with the sizes of its frames, must fit into one message of 64 MiB.
	maxHeader = 16 << 20
	maxFrames = 1 << 20
)

// WrittenHead reads and checks the head of an object that a client wants to write. It accepts only
// objects that every reader can read; the receiver checks that the header fits the frames. The
// error is a gRPC status with INVALID_FIELD.
func WrittenHead(pb *millracev1.ObjectHead) (transfer.Head, error) {
	head := HeadFrom(pb)
	switch {
	case pb == nil:
		return head, edge.InvalidField("head", "the first message has none: send the object's head first")
	case head.Ref.Task == 0:
		return head, edge.InvalidField("head.object.task_id", "it is 0: name the DATA task that the object belongs to")
	case len(head.Header) > maxHeader:
		return head, edge.InvalidField("head.header", fmt.Sprintf("object %s: it has %d bytes, at most %d are allowed: put bulk into frames", head.Ref, len(head.Header), maxHeader))
	case len(head.FrameBytes) > maxFrames:
		return head, edge.InvalidField("head.frame_bytes", fmt.Sprintf("object %s has %d frames, at most %d are allowed: pack small ones together", head.Ref, len(head.FrameBytes), maxFrames))
	case proto.Size(pb) > rawframe.MaxHeadBytes:
		return head, edge.InvalidField("head", fmt.Sprintf("object %s: it has %d bytes with the sizes of %d frames, at most %d are allowed: put bulk into frames, and pack small ones together",
			head.Ref, proto.Size(pb), len(head.FrameBytes), rawframe.MaxHeadBytes))
	}
	var sum uint64
	for _, n := range head.FrameBytes {
		if sum += n; sum < n || sum > 1<<62 {
			return head, edge.InvalidField("head.frame_bytes", fmt.Sprintf("the frames of object %s are larger than any memory: correct their sizes", head.Ref))
		}
	}
	return head, nil
}

// HeadTo converts a head into its message. Both share the header and the list of sizes.
func HeadTo(h transfer.Head) *millracev1.ObjectHead {
	return &millracev1.ObjectHead{Object: refTo(h.Ref), Header: h.Header, FrameBytes: h.FrameBytes}
}

// HeadFrom converts the message of a head. It checks nothing. Both share the header and the list of
// sizes.
func HeadFrom(pb *millracev1.ObjectHead) transfer.Head {
	return transfer.Head{Ref: refFrom(pb.GetObject()), Header: pb.GetHeader(), FrameBytes: pb.GetFrameBytes()}
}

// RefsTo converts refs into their messages.
func RefsTo(refs []transfer.Ref) []*millracev1.ObjectRef {
	out := make([]*millracev1.ObjectRef, len(refs))
	for i, r := range refs {
		out[i] = refTo(r)
	}
	return out
}

// RefsFrom converts the messages of refs.
func RefsFrom(pbs []*millracev1.ObjectRef) []transfer.Ref {
	out := make([]transfer.Ref, len(pbs))
	for i, pb := range pbs {
		out[i] = refFrom(pb)
	}
	return out
}

// FramesTo converts regions into messages with their offsets and sizes; the space is not included.
func FramesTo(regions []transfer.Region) []*hostv1.FrameLocation {
	var out []*hostv1.FrameLocation
	for _, r := range regions {
		out = append(out, &hostv1.FrameLocation{Offset: r.Frame.Offset, Bytes: r.Frame.Bytes})
	}
	return out
}

func refTo(r transfer.Ref) *millracev1.ObjectRef {
	return &millracev1.ObjectRef{TaskId: uint64(r.Task), Generation: uint32(r.Generation), Item: uint32(r.Item)}
}

func refFrom(pb *millracev1.ObjectRef) transfer.Ref {
	return transfer.Ref{Task: ids.TaskID(pb.GetTaskId()), Generation: ids.Attempt(pb.GetGeneration()), Item: ids.Item(pb.GetItem())}
}
