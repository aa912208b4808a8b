package arrowtable

import (
	"errors"

	flatbuffers "github.com/google/flatbuffers/go"
)

// The fields of Schema, Field, Union and KeyValue in Arrow's Schema.fbs, as places in the tables of
// fields. typeOfUnion is the number of Union among the types.
const (
	fieldsOfSchema    = 6
	metadataOfSchema  = 8
	nameOfField       = 4
	kindOfField       = 8
	typeOfField       = 10
	childrenOfField   = 14
	metadataOfField   = 16
	idsOfUnion        = 6
	keyOfMetadata     = 4
	valueOfMetadata   = 6
	metadataOfMessage = 12
	typeOfUnion       = 14
	maxNesting        = 60
	bytesOfElement    = 4
	timesShared       = 4
)

var errSchema = errors.New("the schema of the table is nested too deep, or says more parts than it has: write it anew")

// walk bounds the memory that arrow-go takes for a schema. arrow-go trusts the lengths of vectors,
// and parts of a flatbuffer may lie in each other, so a few bytes could stand for any size.
type walk struct {
	// left is the number of bytes that the parts not visited yet may have. At first it is
	// timesShared times the size of the message, as some writers share equal texts.
	left int
}

// checkSchema returns an error if the parts of a Schema message are together much larger than the
// message. It panics if the message is no flatbuffer.
func checkSchema(message []byte) error {
	w := &walk{left: timesShared * len(message)}
	root := flatbuffers.Table{Bytes: message, Pos: flatbuffers.GetUOffsetT(message)}
	schema := recordBatch(message).Table
	if !w.metadata(&root, metadataOfMessage) || !w.metadata(&schema, metadataOfSchema) || !w.fields(&schema, fieldsOfSchema, 0) {
		return errSchema
	}
	return nil
}

// take counts bytes.
func (w *walk) take(n int) bool {
	w.left -= min(n, w.left+1)
	return w.left >= 0
}

// text counts a text.
func (w *walk) text(t *flatbuffers.Table, field flatbuffers.VOffsetT) bool {
	o := flatbuffers.UOffsetT(t.Offset(field))
	return o == 0 || w.take(t.VectorLen(o))
}

// tables counts the elements of a vector of tables, and calls visit for each of them.
func (w *walk) tables(t *flatbuffers.Table, field flatbuffers.VOffsetT, visit func(*flatbuffers.Table) bool) bool {
	o := flatbuffers.UOffsetT(t.Offset(field))
	if o == 0 {
		return true
	}
	n := t.VectorLen(o)
	if !w.take(n * bytesOfElement) {
		return false
	}
	first := t.Vector(o)
	for i := range flatbuffers.UOffsetT(n) {
		if !visit(&flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(first + i*bytesOfElement)}) {
			return false
		}
	}
	return true
}

func (w *walk) metadata(t *flatbuffers.Table, field flatbuffers.VOffsetT) bool {
	return w.tables(t, field, func(entry *flatbuffers.Table) bool {
		return w.text(entry, keyOfMetadata) && w.text(entry, valueOfMetadata)
	})
}

func (w *walk) fields(t *flatbuffers.Table, field flatbuffers.VOffsetT, depth int) bool {
	return depth < maxNesting && w.tables(t, field, func(f *flatbuffers.Table) bool {
		if !w.text(f, nameOfField) || !w.metadata(f, metadataOfField) {
			return false
		}
		if kind := f.Offset(kindOfField); kind != 0 && f.GetByte(f.Pos+flatbuffers.UOffsetT(kind)) == typeOfUnion && f.Offset(typeOfField) != 0 {
			var union flatbuffers.Table
			f.Union(&union, flatbuffers.UOffsetT(f.Offset(typeOfField)))
			if ids := flatbuffers.UOffsetT(union.Offset(idsOfUnion)); ids != 0 && !w.take(union.VectorLen(ids)*bytesOfElement) {
				return false
			}
		}
		return w.fields(f, childrenOfField, depth+1)
	})
}
