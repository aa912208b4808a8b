package mirror_test

import (
	"context"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
)

func idOf(task int) ids.TaskID { return ids.TaskID(task) }

// farReceiver creates objects in a far space.
type farReceiver struct {
	far     *transfertest.Far
	objects *transfertest.Objects
}

func (r *farReceiver) Create(_ context.Context, head transfer.Head) (transfer.Incoming, error) {
	in := &farIncoming{receiver: r, head: head}
	at := uint64(8 << 20)
	for _, n := range head.FrameBytes {
		in.regions = append(in.regions, transfer.Region{Space: r.far, Frame: memory.Frame{Offset: at, Bytes: n}})
		at += n
	}
	return in, nil
}

type farIncoming struct {
	receiver *farReceiver
	head     transfer.Head
	regions  []transfer.Region
}

func (in *farIncoming) Regions() []transfer.Region { return in.regions }
func (in *farIncoming) Abort()                     {}

func (in *farIncoming) Commit(context.Context) error {
	var frames [][]byte
	for _, r := range in.regions {
		p := make([]byte, r.Frame.Bytes)
		if err := in.receiver.far.ReadInto(r.Frame.Offset, p); err != nil {
			return err
		}
		frames = append(frames, p)
	}
	in.receiver.objects.Put(in.head.Ref, string(in.head.Header), frames...)
	return nil
}
