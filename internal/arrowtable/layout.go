// Package arrowtable is an Adapter: it lays Arrow's record batches out in frames of the slab, and
// reads them there without a copy.
//
// The layout is that of a RecordBatch of Arrow's IPC format, except that each buffer names its
// frame. Dictionaries are columns behind those of the table, in the order in which a walk through
// the columns, depth first, meets them; dictionaries inside of dictionaries come behind these.
package arrowtable

import (
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// Alignment is the multiple of bytes at which a writer begins each buffer in its frame.
const Alignment = 64

// Layout describes a table whose buffers are in frames.
type Layout struct {
	// Rows is the number of rows.
	Rows int64
	// Schema is the encapsulated Schema message of Arrow's IPC format.
	Schema []byte
	// Nodes has an entry for each column, and for each column inside of it, depth first.
	Nodes []Node
	// Buffers are those of the nodes: validity, offsets, data.
	Buffers []Buffer
	// Variadic has the number of data buffers of each column of views.
	Variadic []int64
}

// Column describes one column of a table, for people.
type Column struct{ Name, Type string }

// maxColumns is the largest number of columns that are described.
const maxColumns = 256

// Describe returns the names and types of the first columns.
func Describe(schema *arrow.Schema) []Column {
	columns := make([]Column, 0, min(schema.NumFields(), maxColumns))
	for _, f := range schema.Fields()[:cap(columns)] {
		columns = append(columns, Column{Name: strings.ToValidUTF8(f.Name, "?"), Type: strings.ToValidUTF8(f.Type.String(), "?")})
	}
	return columns
}

// Node describes one column.
type Node struct{ Rows, Nulls int64 }

// Buffer is a place in a frame. A buffer without bytes is absent, and its frame has no meaning.
type Buffer struct {
	Frame         int
	Offset, Bytes int64
}
