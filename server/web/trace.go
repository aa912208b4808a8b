package web

import (
	"fmt"
	"net/http"
	"strconv"

	"google.golang.org/grpc/codes"

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
	runs, err := perfetto.Runs(s.withToken(r), pb.NewSchedulerServiceClient(s.config.API), id)
	if err != nil {
		return err
	}
	if len(runs) == 0 {
		return edge.Refusal(codes.NotFound, "UNKNOWN_GRAPH", fmt.Sprintf("graph %d has no attempt that has ended and is still kept: see ListGraphs", id), map[string]string{"object": given})
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="millrace-g%d.json"`, id))
	h.Set("Cache-Control", "no-store")
	_ = perfetto.Write(w, runs) // An error means that the reader has left.
	return nil
}
