package supervisor

import (
	"bytes"
	"io"
	"sync"
)

// jsonRecord is the beginning of a record in slog's JSON log.
var jsonRecord = []byte(`{"time":"`)

// lines writes the output of several children in whole lines.
type lines struct {
	mu sync.Mutex
	to io.Writer // guarded by mu
}

func (o *lines) write(name string, text []byte) {
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
		// Records of a JSON log stay unchanged, since they contain the worker's name.
		if !bytes.HasPrefix(line, jsonRecord) {
			b.WriteString("[" + name + "] ")
		}
		b.Write(bytes.TrimSuffix(line, []byte("\n")))
		b.WriteByte('\n')
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.to.Write(b.Bytes()) // an error cannot be reported anywhere else
}
