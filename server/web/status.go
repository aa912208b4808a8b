package web

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// status serves a summary, for programs. Any token will do.
func (s *Site) status(w http.ResponseWriter, r *http.Request) {
	shown, _ := s.token(r)
	if _, known := s.config.Tokens.Find(shown); !known && len(s.config.Tokens) > 0 {
		w.Header().Set("WWW-Authenticate", "Bearer")
		plain(w, http.StatusUnauthorized, "send the header \"Authorization: Bearer TOKEN\"")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	status, err := statusOf(ctx, s.config)
	if err != nil {
		plain(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(status) // An error means that the reader has left.
}

// Status is the JSON body of /api/v1/status.
type Status struct {
	ClusterID string            `json:"cluster_id"`
	Version   string            `json:"version"`
	StartedAt time.Time         `json:"start_time"`
	Draining  bool              `json:"draining"`
	Tasks     map[string]uint64 `json:"tasks"`
	Graphs    uint64            `json:"graphs"`
	Clients   uint64            `json:"clients"`
	Workers   []WorkerStatus    `json:"workers"`
}

// WorkerStatus is the summary of one worker in a Status.
type WorkerStatus struct {
	ID               uint32 `json:"id"`
	Name             string `json:"name"`
	State            string `json:"state"`
	Slots            uint32 `json:"slots"`
	AssignedTasks    uint32 `json:"assigned_tasks"`
	FinishedTasks    uint64 `json:"finished_tasks"`
	Objects          uint64 `json:"objects"`
	MemoryLimitBytes uint64 `json:"memory_limit_bytes"`
	MemoryUsedBytes  uint64 `json:"memory_used_bytes"`
	Deaths           int    `json:"deaths"`
}

// shownWorkers bounds the workers in a status.
const shownWorkers = 1000

func statusOf(ctx context.Context, config Config) (*Status, error) {
	var totals sched.Totals
	if err := config.Scheduler.Read(ctx, func(r schedapi.Reader) { totals = r.Totals() }); err != nil {
		return nil, err
	}
	cluster := config.Scheduler.Cluster()
	status := &Status{
		ClusterID: cluster.ID, Version: config.Version, StartedAt: cluster.StartedAt,
		Tasks: map[string]uint64{}, Graphs: totals.Graphs, Clients: totals.Clients, Workers: []WorkerStatus{},
	}
	select {
	case <-config.Scheduler.Draining():
		status.Draining = true
	default:
	}
	for state, name := range taskStates {
		if name != "" {
			status.Tasks[name] = totals.Counts[state]
		}
	}
	workers, _ := config.Scheduler.LastSnapshot().Workers(nil, 0, shownWorkers)
	for _, w := range workers {
		status.Workers = append(status.Workers, WorkerStatus{
			ID: uint32(w.ID), Name: w.Name, State: workerStates[w.State], Slots: w.Slots,
			AssignedTasks: w.AssignedTasks, FinishedTasks: w.FinishedTasks, Objects: w.Objects,
			MemoryLimitBytes: w.MemoryLimitBytes, MemoryUsedBytes: w.MemoryUsedBytes, Deaths: len(w.Deaths),
		})
	}
	return status, nil
}

// taskStates and workerStates are the names of the states, indexed by state.
var (
	taskStates = [10]string{
		sched.TaskWaiting: "waiting", sched.TaskReady: "ready", sched.TaskAssigned: "assigned", sched.TaskRunning: "running",
		sched.TaskSucceeded: "succeeded", sched.TaskFailed: "failed", sched.TaskCancelled: "cancelled", sched.TaskReleased: "released",
		sched.TaskRescuing: "rescuing",
	}
	workerStates = [6]string{
		schedapi.WorkerActive: "active", schedapi.WorkerDisconnected: "disconnected",
		schedapi.WorkerDraining: "draining", schedapi.WorkerDrained: "drained", schedapi.WorkerLost: "lost",
	}
)
