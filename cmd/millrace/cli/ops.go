package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/worker/ops"
	"github.com/millrace/millrace/worker/ops/reference"
)

// opList is the output for programs.
type opList struct {
	Ops []reference.Op `json:"ops"`
}

// getOps lists the native operations of this binary, or describes those of the given names.
func (a *app) getOps(names []string) error {
	list := opList{Ops: reference.All()}
	if len(names) > 0 {
		var err error
		if list.Ops, err = reference.Lookup(names...); err != nil {
			var unknown *ops.Error
			if errors.As(err, &unknown) {
				return status.Error(codes.NotFound, "get ops: "+err.Error())
			}
			return err
		}
	}
	return printAs(a, opList.json, list, func(w io.Writer, wide bool) {
		if len(names) > 0 {
			for i, op := range list.Ops {
				if i > 0 {
					_, _ = fmt.Fprintln(w)
				}
				_, _ = io.WriteString(w, op.Text())
			}
			return
		}
		header := []any{"NAME", "RUNS ON", "DOES"}
		if wide {
			header = []any{"CALL", "RUNS ON", "LIBRARIES", "DOES"}
		}
		row(w, header...)
		for _, op := range list.Ops {
			if wide {
				row(w, op.Signature, op.RunsOn(), strings.Join(op.Libraries, ","), op.Doc)
			} else {
				row(w, op.Name, op.RunsOn(), op.Doc)
			}
		}
	})
}

// json writes the list as protojson writes messages.
func (l opList) json() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(l)
	return b.Bytes(), err
}
