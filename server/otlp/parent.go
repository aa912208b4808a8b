package otlp

import (
	"encoding/hex"
	"strings"
)

// stateBytes is the size of the longest tracestate that is passed on.
const stateBytes = 512

// parent is a span of a client, as W3C Trace Context has it.
type parent struct {
	trace   [16]byte
	span    [8]byte
	sampled bool
	state   string // tracestate
}

// parseParent reads the values of the headers traceparent and tracestate. It returns false if the
// first one is missing or wrong.
func parseParent(header, state string) (p parent, ok bool) {
	// version "-" trace id "-" span id "-" flags; later versions may append fields.
	const length = 2 + 1 + 32 + 1 + 16 + 1 + 2
	if len(header) < length || header[2] != '-' || header[35] != '-' || header[52] != '-' || strings.ToLower(header) != header {
		return parent{}, false
	}
	var version, flags [1]byte
	for _, part := range []struct {
		to   []byte
		text string
	}{{version[:], header[:2]}, {p.trace[:], header[3:35]}, {p.span[:], header[36:52]}, {flags[:], header[53:55]}} {
		if _, err := hex.Decode(part.to, []byte(part.text)); err != nil {
			return parent{}, false
		}
	}
	longer := len(header) > length
	switch {
	case version[0] == 0xff, version[0] == 0 && longer, longer && header[length] != '-':
		return parent{}, false
	case p.trace == [16]byte{}, p.span == [8]byte{}:
		return parent{}, false
	}
	p.sampled = flags[0]&1 != 0
	if len(state) <= stateBytes {
		p.state = state
	}
	return p, true
}
