package stream

import (
	"math"
	"slices"
	"strconv"
	"time"
	"unsafe"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
)

// routes is the topic of the same name: a row for each worker that reads from others. The rows of
// workers do not contain them: there may be as many as pairs of workers, and few pages show them.
type routes struct {
	table[ids.WorkerID]
	scheduler schedapi.Scheduler
	revision  uint64
	// seen are the routes of each row. The loop makes a new list if one of them has changed.
	seen map[ids.WorkerID][]schedapi.Route
}

func newRoutes(scheduler schedapi.Scheduler) *routes {
	number := func(id ids.WorkerID) string { return strconv.FormatUint(uint64(id), 10) }
	return &routes{table: newTable("routes", number), scheduler: scheduler, seen: map[ids.WorkerID][]schedapi.Route{}}
}

func (t *routes) update(time.Time) *event {
	changes := t.scheduler.LastSnapshot().Changes(schedapi.Selection{Workers: true}, t.revision)
	t.revision = changes.Revision
	present := map[ids.WorkerID]bool{}
	for _, w := range changes.Workers {
		present[w.ID] = true
		if sameRoutes(t.seen[w.ID], w.Routes) {
			continue
		}
		t.seen[w.ID] = w.Routes
		t.putText(w.ID, appendRoutes(nil, w.ID, w.Routes))
	}
	if changes.Snapshot {
		for _, id := range slices.Clone(t.order) {
			if !present[id] {
				t.drop(id)
			}
		}
	}
	for _, id := range changes.RemovedWorkers {
		t.drop(id)
	}
	return t.delta()
}

func (t *routes) drop(id ids.WorkerID) {
	delete(t.seen, id)
	t.remove(id)
}

// sameRoutes reports whether two lists are one.
func sameRoutes(a, b []schedapi.Route) bool {
	return len(a) == len(b) && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// appendRoutes appends a row: the JSON of a Worker that has its number and routes alone. It leaves
// fields out that are zero. protojson takes ten times as long.
func appendRoutes(to []byte, worker ids.WorkerID, list []schedapi.Route) []byte {
	to = append(to, `{"workerId":`...)
	to = strconv.AppendUint(to, uint64(worker), 10)
	to = append(to, `,"routes":[`...)
	for i := range list {
		r := &list[i]
		if i > 0 {
			to = append(to, ',')
		}
		to = append(to, `{"peerWorkerId":`...)
		to = strconv.AppendUint(to, uint64(r.Peer), 10)
		to = appendText(to, "peer", r.PeerName)
		to = appendText(to, "path", pb.TransferPath(r.Path).String())
		to = appendText(to, "state", pb.RouteState(r.State).String())
		to = appendText(to, "reason", r.Reason)
		to = appendFloat(to, "bytesPerSecond", r.BytesPerSecond)
		if r.Latency != 0 {
			to = append(to, `,"latency":"`...)
			to = strconv.AppendFloat(to, r.Latency.Seconds(), 'f', 9, 64)
			to = append(to, `s"`...)
		}
		to = appendCount(to, "receivedBytes", r.Bytes)
		to = appendCount(to, "succeededFetches", r.Succeeded)
		to = appendCount(to, "failedFetches", r.Failed)
		to = appendText(to, "transport", r.Transport)
		to = appendText(to, "staged", r.Staged)
		to = appendFloat(to, "connectBytesPerSecond", r.ConnectBytesPerSecond)
		to = appendText(to, "connectionReason", r.ConnectionReason)
		to = append(to, '}')
	}
	return append(to, "]}"...)
}

func appendName(to []byte, name string) []byte {
	return append(append(append(to, `,"`...), name...), `":`...)
}

func appendText(to []byte, name, value string) []byte {
	if value == "" {
		return to
	}
	return quoted(appendName(to, name), value)
}

func appendFloat(to []byte, name string, value float64) []byte {
	if value == 0 || math.IsNaN(value) || math.IsInf(value, 0) {
		return to
	}
	return strconv.AppendFloat(appendName(to, name), value, 'g', -1, 64)
}

// appendCount appends a number of 64 bits, which is a text in the JSON of protobuf.
func appendCount(to []byte, name string, value uint64) []byte {
	if value == 0 {
		return to
	}
	to = append(appendName(to, name), '"')
	return append(strconv.AppendUint(to, value, 10), '"')
}
