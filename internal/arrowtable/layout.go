// Package arrowtable is an Adapter: it lays Arrow's record batches out in frames of the slab, and
// reads them there without a copy.
//
// The layout is that of a RecordBatch of Arrow's IPC format, except that each buffer names its
// frame. Dictionaries are columns behind those of the table, in the order in which a walk through
// the columns, depth first, meets them; dictionaries inside of dictionaries come behind these.
package arrowtable

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

// Node describes one column.
type Node struct{ Rows, Nulls int64 }

// Buffer is a place in a frame. A buffer without bytes is absent, and its frame has no meaning.
type Buffer struct {
	Frame         int
	Offset, Bytes int64
}
