package rpc

import (
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/front"
)

const (
	// pageBytes is about the most that a page of a list has: it ends earlier, and the next one goes on.
	pageBytes = 4 << 20
	// locateBytes bounds an answer that has no pages.
	locateBytes = 32 << 20

	// listedBytes bounds one long field of a row in a list, listedText one text of it.
	listedBytes = 16 << 10
	listedText  = 2 << 10
	// shownKeys, listedPrefixes and shownPrefixes are the most that are shown of a dataset's keys in a list, and of a graph's
	// ops in lists and alone.
	shownKeys      = 1000
	listedPrefixes = 1000
	shownPrefixes  = 10_000
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

// few returns the beginning of a list of texts, until it has limit bytes or most elements.
func few(texts []string, most, limit int) []string {
	bytes := 0
	for i, s := range texts {
		if bytes += len(s); i == most || bytes > limit && i > 0 {
			return texts[:i:i]
		}
	}
	return texts
}

// listedTask shortens what may be long in a task that is one of many.
func listedTask(t *pb.Task) *pb.Task {
	t.Inputs = few(t.GetInputs(), len(t.GetInputs()), listedBytes)
	if e := t.GetError(); e != nil {
		e.Message, e.LogTail, e.Traceback = text.Cut(e.GetMessage(), listedText), text.Tail(e.GetLogTail(), listedText), text.Tail(e.GetTraceback(), listedText)
		e.Exception = nil
	}
	if o := t.GetOptions(); o != nil {
		o.Workers = few(o.GetWorkers(), len(o.GetWorkers()), listedBytes)
	}
	return t
}

// listedDataset shortens what may be long in a dataset that is one of many. Half of its metadata would mean nothing.
func listedDataset(d *front.Dataset) *pb.Dataset {
	short := *d
	short.Keys = few(d.Keys, shownKeys, listedBytes)
	if len(d.Metadata) > listedBytes {
		short.Metadata = nil
	}
	listed := datasetTo(&short)
	listed.KeyCount, listed.MetadataBytes = uint64(len(d.Keys)), uint64(len(d.Metadata))
	return listed
}

// listedGraph shortens what may be long in a graph that is one of many.
func listedGraph(g *front.Graph) *pb.Graph {
	short := *g
	short.Prefixes = g.Prefixes[:min(len(g.Prefixes), listedPrefixes)]
	return graphTo(&short)
}

// reachedWorker is what one has to know of a worker to fetch from it.
func reachedWorker(w *front.Worker) *pb.Worker {
	short := *w
	short.Deaths, short.Lanes, short.LastExecutorDeath, short.SpillFailure, short.Executors, short.Resources = nil, nil, "", "", nil, nil
	return workerTo(&short)
}
