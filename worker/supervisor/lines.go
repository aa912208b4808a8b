package supervisor

import (
	"bytes"
	"io"
	"sync"
)

// jsonRecord is how the records of slog's JSON log begin.
var jsonRecord = []byte(`{"time":"`)

// lines writes whole lines of several children.
type lines struct {
	mu sync.Mutex
	to io.Writer // guarded by mu
}

func (o *lines) write(name string, text []byte) {
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
		// Records of a log in JSON stay what they are: they say whose they are.
		if !bytes.HasPrefix(line, jsonRecord) {
			b.WriteString("[" + name + "] ")
		}
		b.Write(bytes.TrimSuffix(line, []byte("\n")))
		b.WriteByte('\n')
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.to.Write(b.Bytes()) // nobody is left to tell
}
