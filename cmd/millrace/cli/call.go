package cli

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// call runs f with a connection that has no client lease.
func (a *app) call(cmd *cobra.Command, f func(context.Context, *millrace.Client, millracev1.SchedulerServiceClient) error) error {
	return a.callFor(cmd.Context(), a.settings.Duration("timeout"), f)
}

// callFor is call with a time limit; 0: none.
func (a *app) callFor(ctx context.Context, limit time.Duration, f func(context.Context, *millrace.Client, millracev1.SchedulerServiceClient) error) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	c, err := a.dial(ctx, millrace.WithoutLease())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return f(ctx, c, c.Scheduler())
}

func addTimeout(cmd *cobra.Command) {
	cmd.Flags().Duration("timeout", 30*time.Second, "longest wait for the answer")
}

func addCall(cmd *cobra.Command) {
	addTimeout(cmd)
	cmd.Flags().String("namespace", "", "namespace of keys; empty: default")
}

// number parses an id with its letter: t12, g3, w7, or the number alone.
func number(text string, letter byte) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(text, string(letter)), 10, 64)
	return n, err == nil && n > 0
}

// workerRef names a worker in a request. A text like w7 is a number, unless a worker has that name.
func workerRef(ctx context.Context, s millracev1.SchedulerServiceClient, text string) *millracev1.WorkerRef {
	named := &millracev1.WorkerRef{Worker: &millracev1.WorkerRef_Name{Name: text}}
	n, ok := number(text, 'w')
	if !ok || text[0] != 'w' || n > math.MaxUint32 {
		return named
	}
	if _, err := s.GetWorker(ctx, &millracev1.GetWorkerRequest{Worker: named, View: millracev1.WorkerView_WORKER_VIEW_BASIC}); err == nil {
		return named
	}
	return &millracev1.WorkerRef{Worker: &millracev1.WorkerRef_Id{Id: uint32(n)}}
}

// workerRefs reads the workers that a command names.
func workerRefs(ctx context.Context, s millracev1.SchedulerServiceClient, texts []string) ([]*millracev1.WorkerRef, error) {
	var refs []*millracev1.WorkerRef
	for i, text := range texts {
		if text == "" {
			return nil, usageError{fmt.Errorf("worker %d of %d has an empty name: give the name or the number of each, as `millrace get workers` lists them", i+1, len(texts))}
		}
		refs = append(refs, workerRef(ctx, s, text))
	}
	return refs, nil
}

// named returns the tasks and graphs that arguments name: g3 is a graph; t5 is a task, unless a
// task has that key; all else are keys.
func (a *app) named(ctx context.Context, s millracev1.SchedulerServiceClient, args []string) (tasks *millracev1.TaskSet, graphs []uint64) {
	tasks = &millracev1.TaskSet{Namespace: a.settings.String("namespace")}
	for _, name := range args {
		if n, ok := number(name, 'g'); ok && name[0] == 'g' {
			graphs = append(graphs, n)
		} else if n, ok := number(name, 't'); ok && name[0] == 't' && !known(ctx, s, tasks.GetNamespace(), name) {
			tasks.Ids = append(tasks.Ids, n)
		} else {
			tasks.Keys = append(tasks.Keys, name)
		}
	}
	return tasks, graphs
}

func byKey(key, namespace string) *millracev1.TaskRef {
	return &millracev1.TaskRef{Task: &millracev1.TaskRef_Key{Key: key}, Namespace: namespace}
}

func byNumber(n uint64) *millracev1.TaskRef {
	return &millracev1.TaskRef{Task: &millracev1.TaskRef_Id{Id: n}}
}

// known reports whether a task has the key.
func known(ctx context.Context, s millracev1.SchedulerServiceClient, namespace, key string) bool {
	_, err := s.GetTask(ctx, &millracev1.GetTaskRequest{Task: byKey(key, namespace)})
	return status.Code(err) != codes.NotFound
}
