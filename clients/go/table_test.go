package millrace

import (
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func TestHostileTables(t *testing.T) {
	table := func(buffers ...*millracev1.TableBuffer) *millracev1.Value {
		return &millracev1.Value{Kind: &millracev1.Value_TableValue{TableValue: &millracev1.Table{Buffers: buffers}}}
	}
	frames := [][]byte{{1}, {2}, {3}}
	if v, err := goValue(table(&millracev1.TableBuffer{Frame: 3, Bytes: 1}), frames); err == nil || !strings.Contains(err.Error(), "frame 3 of an object with 3 frames") {
		t.Errorf("a table without its frame: %v, %v", v, err)
	}
	v, err := goValue(table(&millracev1.TableBuffer{Frame: 9}, &millracev1.TableBuffer{Frame: 2, Bytes: 1}, &millracev1.TableBuffer{Frame: 1, Bytes: 1}, &millracev1.TableBuffer{Frame: 2, Bytes: 1}), frames)
	if err != nil {
		t.Fatal(err)
	}
	got := v.(Table)
	var numbers []uint32
	for _, b := range got.Message.GetBuffers() {
		numbers = append(numbers, b.GetFrame())
	}
	if len(got.Frames) != 2 || got.Frames[0][0] != 3 || got.Frames[1][0] != 2 || numbers[0] != 0 || numbers[1] != 0 || numbers[2] != 1 || numbers[3] != 0 {
		t.Errorf("frames %v, numbers %v", got.Frames, numbers)
	}
	large := Table{Message: got.Message, Frames: [][]byte{make([]byte, maxInlineBytes+1)}}
	if _, err := appendValue(nil, large, nil); err == nil || !strings.Contains(err.Error(), "Scatter it") {
		t.Errorf("a large argument: %v", err)
	}
}
