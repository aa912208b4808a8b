package web

import (
	"fmt"
	"net/http"
	"strconv"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/perfetto"
	"github.com/millrace/millrace/internal/text"
)

// trace answers with the attempts of a graph as a file for Perfetto.
func (s *Site) trace(w http.ResponseWriter, r *http.Request) error {
	given := r.URL.Query().Get("graph")
	id, err := strconv.ParseUint(given, 10, 64)
	if err != nil {
		return edge.InvalidField("graph", fmt.Sprintf("%q is not the number of a graph", text.Cut(given, 100)))
	}
	trace, err := perfetto.Read(s.withToken(r), pb.NewSchedulerServiceClient(s.config.API), id)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="millrace-g%d.json"`, id))
	h.Set("Cache-Control", "no-store")
	_ = trace.Write(w) // An error means that the reader has left.
	return nil
}
