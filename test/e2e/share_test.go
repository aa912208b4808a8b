package e2e

import (
	"bytes"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// TestGoClientUsesTheMemoryOfWorkersOnThisHost: a scattered array is written to its final place,
// and comes back by a copy, as a view, or by gRPC if that is asked for. All of them have the same
// bytes.
func TestGoClientUsesTheMemoryOfWorkersOnThisHost(t *testing.T) {
	ctx := soon(t)
	data := make([]uint8, 5<<20+3)
	for i := range data {
		data[i] = uint8(i * 13)
	}
	array, err := millrace.FromSlice(data)
	if err != nil {
		t.Fatal(err)
	}
	for name, options := range map[string][]millrace.Option{"shared memory": nil, "grpc": {millrace.WithoutSharedMemory()}} {
		t.Run(name, func(t *testing.T) {
			c := shared.dial(t, append(options, millrace.WithNamespace(namespace(t)))...)
			f, err := c.Scatter(ctx, array)
			if err != nil {
				t.Fatal(err)
			}
			back, err := f.Array(ctx)
			if err != nil {
				t.Fatal(err)
			}
			view, done, err := f.View(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer done()
			into := make([]byte, len(data))
			if _, err := f.ArrayInto(ctx, into); err != nil {
				t.Fatal(err)
			}
			for what, got := range map[string][]byte{"copy": back.Data, "view": view.Data, "into": into} {
				if !bytes.Equal(got, data) {
					t.Errorf("the %s differs", what)
				}
			}
			paths := c.DataPaths()
			if len(paths) == 0 {
				t.Error("no paths")
			}
			for address, path := range paths {
				if !strings.HasPrefix(path, name) {
					t.Errorf("%s by %s, want %s", address, path, name)
				}
			}
		})
	}
}
