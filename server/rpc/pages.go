package rpc

import (
	"context"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// pageBytes is the approximate size at which a page of a list ends; the next page continues.
	pageBytes = 4 << 20
	// locateBytes bounds an answer that has no pages.
	locateBytes = 32 << 20

	// listedBytes bounds one long field of a row in a list, listedText one of its texts.
	listedBytes = 16 << 10
	listedText  = 2 << 10
	// listedOps bounds the ops of a graph in a list, shownOps those of a graph that is shown alone.
	listedOps = 1000
	shownOps  = 10_000
)

// page converts the rows of a page, as many as it has room for, but one at least.
func page[R any, P proto.Message](rows []R, convert func(R) P) []P {
	converted, bytes := make([]P, 0, len(rows)), 0
	for _, row := range rows {
		next := convert(row)
		if bytes += proto.Size(next); bytes > pageBytes && len(converted) > 0 {
			break
		}
		converted = append(converted, next)
	}
	return converted
}

// few returns the beginning of a list of texts: at most most elements, and about limit bytes, but
// at least one element.
func few(texts []string, most, limit int) []string {
	bytes := 0
	for i, s := range texts {
		if bytes += len(s); i == most || bytes > limit && i > 0 {
			return texts[:i:i]
		}
	}
	return texts
}

// listedTask shortens the long fields of a task for a list.
func listedTask(t *pb.Task) *pb.Task {
	t.Inputs = few(t.GetInputs(), len(t.GetInputs()), listedBytes)
	if e := t.GetError(); e != nil {
		e.Message, e.LogTail, e.Traceback = text.Cut(e.GetMessage(), listedText), text.Tail(e.GetLogTail(), listedText), text.Tail(e.GetTraceback(), listedText)
		e.Exception = nil
	}
	if o := t.GetOptions(); o != nil {
		names := convertAll(o.GetWorkers(), func(s *pb.WorkerSelector) string { return selectorFrom(s).String() })
		o.Workers = o.GetWorkers()[:len(few(names, len(names), listedBytes))]
	}
	return t
}

// listedGraph shortens the long fields of a graph for a list.
func listedGraph(ctx context.Context, g *schedapi.Graph) *pb.Graph {
	short := *g
	short.Ops = g.Ops[:min(len(g.Ops), listedOps)]
	listed := graphTo(&short)
	listed.ClientId = shownClient(ctx, g.Client)
	return listed
}
