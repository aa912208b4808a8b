package ids_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/ids"
)

func TestIDsPrintWithTheirLetter(t *testing.T) {
	for _, c := range []struct {
		id   fmt.Stringer
		want string
	}{
		{ids.TaskID(42), "t42"},
		{ids.TaskID(1<<64 - 1), "t18446744073709551615"},
		{ids.GraphID(7), "g7"},
		{ids.WorkerID(3), "w3"},
		{ids.ClientID(5), "c5"},
		{ids.OpID(9), "o9"},
		{ids.Attempt(1), "a1"},
		{ids.Item(3), "/i3"},
		{ids.Item(0), ""},
		{ids.Incarnation(""), "unknown"},
		{ids.Incarnation("0198"), "0198"},
		{ids.FunctionHash{0xab}, "ab" + strings.Repeat("0", 62)},
	} {
		if got := c.id.String(); got != c.want {
			t.Errorf("%T: got %q, want %q", c.id, got, c.want)
		}
	}
}
