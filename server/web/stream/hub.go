// Package stream is an Adapter: it tells the viewers of the dashboard about changes, by server-sent
// events.
//
// One goroutine, that of Hub.Run, reads the scheduler and encodes each event once, for all viewers.
// Without viewers it only takes a sample per second. Each viewer has a bounded queue: a viewer that
// falls behind misses changes and gets a new snapshot, and one that takes nothing for a while is
// dropped. The scheduler waits for nobody.
package stream

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// tick is the shortest time between two events of a topic.
	tick = 100 * time.Millisecond
	// idleTick is the time between two samples.
	idleTick = time.Second
	// maxViewers bounds the open streams.
	maxViewers = 100
	// queueBytes bounds the events that wait for one viewer, unless it is only one event.
	queueBytes = 1 << 20
	// patience is the time that a viewer has to take one event.
	patience = 10 * time.Second
	// longestPause bounds the time between two updates of a topic.
	longestPause = 10 * time.Second
	// heartbeat is the longest silence of a stream. It shows each side that the other one is there.
	heartbeat = 15 * time.Second
	// readTimeout is the longest time that a request waits for the scheduler.
	readTimeout = 2 * time.Second
)

// Rows converts rows of the catalogue to messages that all viewers may see.
type Rows interface {
	Worker(*schedapi.Worker) *pb.Worker
	Graph(*schedapi.Graph) *pb.Graph
	Client(*schedapi.Client) *pb.Client
	ClientNumber(ids.ClientID) uint64
	Dataset(*schedapi.Dataset) *pb.Dataset
}

// Config sets up a hub.
type Config struct {
	Scheduler schedapi.Scheduler
	Rows      Rows
	Alarms    Alarms // nil: none
}

// Hub serves the streams.
type Hub struct {
	config    Config
	scheduler schedapi.Scheduler
	topics    []*topicState
	samples   *samples

	mu      sync.Mutex
	viewers map[*viewer]struct{} // guarded by mu; nil: the hub has stopped
	stopped bool
	// arrived wakes Run when a viewer has come.
	arrived chan struct{}
}

// topic makes the events of one name. Only the goroutine of Hub.Run calls the methods.
type topic interface {
	// update reads the scheduler, and returns the event for viewers that know all before it; nil:
	// nothing has changed.
	update(now time.Time) *event
	// snapshot returns the event for a viewer that knows nothing; nil: there is none.
	snapshot(v *viewer) *event
}

type topicState struct {
	name string
	topic
	// every is the shortest time between two events, and next the time of the next update: later
	// if the last one took long or was large.
	every time.Duration
	next  time.Time
	// watched: there were viewers at the last tick.
	watched bool
}

// The shortest times between two events of a topic. Pages draw curves from the brisk ones. The
// tables of the slow ones change little, as workers report every second.
const (
	brisk  = 250 * time.Millisecond
	medium = 500 * time.Millisecond
	slow   = time.Second
)

const (
	// share is the part of the time, one of so many, that updates of one topic may take.
	share = 30
	// bytesPerSecond bounds the changes of one topic for each viewer.
	bytesPerSecond = 1 << 20
)

// pause returns the time until the next update, after one that took a while and made an event.
func (t *topicState) pause(took time.Duration, e *event) time.Duration {
	pause := max(t.every, share*took)
	if e != nil {
		pause = max(pause, time.Duration(len(e.data))*time.Second/bytesPerSecond)
	}
	return min(pause, longestPause)
}

// event is an encoded event. Viewers share it.
type event struct {
	data []byte
	// last is the number of the last run in it; 0: it has no runs.
	last uint64
}

// New returns a hub. It does nothing until Run is called.
func New(config Config) *Hub {
	h := &Hub{config: config, scheduler: config.Scheduler, viewers: map[*viewer]struct{}{}, arrived: make(chan struct{}, 1)}
	graphs := newGraphs(config)
	summary := newSummary(config)
	h.samples = newSamples(summary)
	add := func(name string, every time.Duration, t topic) {
		h.topics = append(h.topics, &topicState{name: name, every: every, topic: t})
	}
	add("summary", brisk, summary)
	add("workers", slow, newWorkers(config))
	add("graphs", medium, graphs)
	add("clients", slow, newClients(config))
	add("datasets", slow, newDatasets(config))
	add("runs", tick, &runs{scheduler: config.Scheduler, start: config.Scheduler.Cluster().StartedAt})
	add("events", brisk, &events{scheduler: config.Scheduler})
	add("alarms", medium, &alarms{source: config.Alarms})
	add("routes", slow, newRoutes(config.Scheduler))
	return h
}

// Run serves until ctx ends or the scheduler drains. Then all streams end. Call it once.
func (h *Hub) Run(ctx context.Context) {
	defer h.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.scheduler.Draining():
			return
		case <-timer.C:
		case <-h.arrived:
		}
		now := time.Now()
		h.samples.take(now)
		if h.serve(now) {
			timer.Reset(tick)
		} else {
			timer.Reset(idleTick)
		}
	}
}

func (h *Hub) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	for v := range h.viewers {
		close(v.ended)
	}
	clear(h.viewers)
}

// serve brings each topic up to date that has viewers, and hands out the events. It returns false
// if there are no viewers.
func (h *Hub) serve(now time.Time) bool {
	h.mu.Lock()
	viewers := make([]*viewer, 0, len(h.viewers))
	for v := range h.viewers { // order-free: each gets the same
		viewers = append(viewers, v)
	}
	h.mu.Unlock()
	for i, t := range h.topics {
		bit := uint32(1) << i
		watched, fresh := false, false
		for _, v := range viewers {
			watched = watched || v.topics&bit != 0
			fresh = fresh || v.topics&bit != 0 && v.missing.Load()&bit != 0
		}
		due := watched && (!now.Before(t.next) || !t.watched)
		t.watched = watched
		if !due && !fresh {
			continue
		}
		var changed *event
		if due {
			began := time.Now()
			changed = t.update(now)
			t.next = now.Add(t.pause(time.Since(began), changed) - tick/2)
		}
		for _, v := range viewers {
			switch {
			case v.topics&bit == 0:
			case v.missing.Load()&bit != 0:
				v.offerSnapshot(t, bit)
			case changed != nil:
				v.offer(changed, bit)
			}
		}
	}
	return len(viewers) > 0
}

// names lists the topics.
func (h *Hub) names() []string {
	var names []string
	for _, t := range h.topics {
		names = append(names, t.name)
	}
	return names
}

// selection returns the bits of the topics that a request names.
func (h *Hub) selection(asked string) (uint32, error) {
	if asked == "" {
		asked = "summary"
	}
	var bits uint32
	for name := range strings.SplitSeq(asked, ",") {
		i := slices.IndexFunc(h.topics, func(t *topicState) bool { return t.name == name })
		if i < 0 {
			return 0, edge.InvalidField("topics", fmt.Sprintf("there is no topic %q; there are %s", text.Cut(name, 100), strings.Join(h.names(), ", ")))
		}
		bits |= 1 << i
	}
	return bits, nil
}

// Serve streams the topics of a request until its sender leaves.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request) error {
	topics, err := h.selection(r.URL.Query().Get("topics"))
	if err != nil {
		return err
	}
	v := &viewer{topics: topics, ready: make(chan struct{}, 1), ended: make(chan struct{})}
	v.missing.Store(topics)
	after := r.URL.Query().Get("runs_after")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after = last // The stream broke, and the browser has connected again.
	}
	if after != "" {
		if v.runsAfter, err = strconv.ParseUint(after, 10, 64); err != nil {
			return edge.InvalidField("runs_after", "it is not the number of a run: "+text.Cut(after, 100))
		}
	}
	if err := h.join(v); err != nil {
		return err
	}
	defer h.leave(v)
	v.write(r.Context(), w)
	return nil
}

func (h *Hub) join(v *viewer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.stopped:
		return edge.Refusal(codes.Unavailable, "DRAINING", "the scheduler is stopping: wait until it is back", nil)
	case len(h.viewers) >= maxViewers:
		return edge.Refusal(codes.Unavailable, "SCHEDULER_FULL", fmt.Sprintf("%d pages of the dashboard are open, and no more are served: close one", maxViewers), nil)
	}
	h.viewers[v] = struct{}{}
	select {
	case h.arrived <- struct{}{}:
	default:
	}
	return nil
}

func (h *Hub) leave(v *viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.viewers, v)
}

// Viewers returns the number of open streams.
func (h *Hub) Viewers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.viewers)
}
