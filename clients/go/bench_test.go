package millrace

import (
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// BenchmarkTask measures the client's cost of one task without the transport: encoding it,
// assigning its number, and decoding the update that ends it.
func BenchmarkTask(b *testing.B) {
	const tasks = 10_000
	c := &Client{}
	c.futures.init()
	c.submits.init()
	c.config.batchTasks, c.config.batchSize = maxBatchTasks, maxBatchBytes
	c.ctx = b.Context()
	next := uint64(0)
	for b.Loop() {
		futures, err := c.Map(b.Context(), Native("bench.noop"), func(yield func(Arguments) bool) {
			for range tasks {
				if !yield(Arguments{}) {
					return
				}
			}
		})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		ids := make([]uint64, tasks)
		answer := &millracev1.WatchResponse{Revision: 1}
		for i := range ids {
			next++
			ids[i] = next
			answer.Tasks = append(answer.Tasks, &millracev1.TaskUpdate{TaskId: next, State: Succeeded, InlineResult: []byte{8, 0}, Generation: 1})
		}
		data, err := proto.Marshal(answer)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		c.submits.next()
		c.futures.begin()
		c.futures.bind(futures, ids, 1, nil)
		c.futures.end()
		var batch taskBatch
		if err := batch.decodeWire(data); err != nil {
			b.Fatal(err)
		}
		c.futures.update(batch.updates)
		c.futures.forget(futures)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/tasks, "ns/task")
}
