// Package dataproto is an Adapter: the values of transfer as the messages that
// DataService and the borrow protocol have in common.
package dataproto

import (
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
)

// HeadTo makes the message of a head. They share the header and the sizes.
func HeadTo(h transfer.Head) *millracev1.ObjectHead {
	return &millracev1.ObjectHead{Object: refTo(h.Ref), Header: h.Header, FrameBytes: h.FrameBytes}
}

// HeadFrom reads the message of a head, nothing of which is checked. They share
// the header and the sizes.
func HeadFrom(pb *millracev1.ObjectHead) transfer.Head {
	return transfer.Head{Ref: refFrom(pb.GetObject()), Header: pb.GetHeader(), FrameBytes: pb.GetFrameBytes()}
}

// RefsTo makes the messages of refs.
func RefsTo(refs []transfer.Ref) []*millracev1.ObjectRef {
	out := make([]*millracev1.ObjectRef, len(refs))
	for i, r := range refs {
		out[i] = refTo(r)
	}
	return out
}

// RefsFrom reads the messages of refs.
func RefsFrom(pbs []*millracev1.ObjectRef) []transfer.Ref {
	out := make([]transfer.Ref, len(pbs))
	for i, pb := range pbs {
		out[i] = refFrom(pb)
	}
	return out
}

// FramesTo says where regions are in the memory that they are in.
func FramesTo(regions []transfer.Region) []*millracev1.FrameLocation {
	var out []*millracev1.FrameLocation
	for _, r := range regions {
		out = append(out, &millracev1.FrameLocation{Offset: r.Frame.Offset, Bytes: r.Frame.Bytes})
	}
	return out
}

func refTo(r transfer.Ref) *millracev1.ObjectRef {
	return &millracev1.ObjectRef{TaskId: uint64(r.Task), Generation: uint32(r.Generation)}
}

func refFrom(pb *millracev1.ObjectRef) transfer.Ref {
	return transfer.Ref{Task: ids.TaskID(pb.GetTaskId()), Generation: ids.Attempt(pb.GetGeneration())}
}
