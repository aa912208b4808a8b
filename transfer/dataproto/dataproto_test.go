package dataproto

import (
	"reflect"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

func TestMessagesAreReadAsWritten(t *testing.T) {
	refs := []transfer.Ref{{Task: 1 << 60, Generation: 1<<32 - 1}, {Task: 2}, {}, {Task: 3, Generation: 1, Item: 1<<32 - 1}}
	if got := RefsFrom(RefsTo(refs)); !reflect.DeepEqual(got, refs) {
		t.Errorf("refs %v became %v", refs, got)
	}
	for _, r := range refs {
		h := transfer.Head{Ref: r, Header: []byte("header"), FrameBytes: []uint64{0, 7, 1 << 40}}
		if got := HeadFrom(HeadTo(h)); !reflect.DeepEqual(got, h) {
			t.Errorf("%v became %v", h, got)
		}
	}
	frames := FramesTo([]transfer.Region{{Frame: memory.Frame{Offset: 4096, Bytes: 7}}, {}})
	if len(frames) != 2 || frames[0].GetOffset() != 4096 || frames[0].GetBytes() != 7 || frames[1].GetBytes() != 0 {
		t.Errorf("frames %v", frames)
	}
}

func TestAbsenceIsZero(t *testing.T) {
	if got := HeadFrom(nil); !reflect.DeepEqual(got, transfer.Head{}) {
		t.Errorf("no head became %v", got)
	}
}
