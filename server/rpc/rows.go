package rpc

import (
	"context"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
)

// Rows converts rows of the catalogue to messages that all roles may see: clients have the numbers
// that readers see.
type Rows struct{}

// Worker converts a worker with all of its fields.
func (Rows) Worker(w *schedapi.Worker) *pb.Worker {
	return workerTo(w, pb.WorkerView_WORKER_VIEW_FULL)
}

// Graph converts a graph as lists show it.
func (Rows) Graph(g *schedapi.Graph) *pb.Graph { return listedGraph(asReader, g) }

// Client converts a client.
func (Rows) Client(c *schedapi.Client) *pb.Client {
	row := clientTo(c)
	row.ClientId = shownClient(asReader, c.ID)
	return row
}

// ClientNumber returns the number that Client and Graph show.
func (Rows) ClientNumber(id ids.ClientID) uint64 { return shownClient(asReader, id) }

// Dataset converts a dataset without its keys and its value.
func (Rows) Dataset(d *schedapi.Dataset) *pb.Dataset { return datasetTo(d) }

var asReader = access.With(context.Background(), access.Identity{Role: access.Reader})
