package journal

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/server/sched"
)

// BenchmarkRows shows what the rows of submissions cost, per task: encoding and packing.
func BenchmarkRows(b *testing.B) {
	for _, tasks := range []int{1, 10, 100, 10000} {
		row := &sched.TasksPut{Graph: 7, Ops: []sched.OpSpec{{Name: "bench.noop"}}, Options: make([]sched.Options, 1)}
		for i := range tasks {
			row.Tasks = append(row.Tasks, sched.TaskRow{Task: 1<<30 + 1, Key: fmt.Sprintf("noop-%x-%d", 0x12345678abcd, i), Arguments: []byte{10, 0}, RunHold: true})
		}
		rows := []Record{
			&sched.GraphPut{Graph: 7, Client: 1 << 60, Name: "graph", Namespace: "default"}, row,
			&sched.RequestPut{Client: 1 << 60, Namespace: "default", Request: "0123456789abcdef0123456789abcdef", Graph: 7},
		}
		encoder, err := newEncoder()
		if err != nil {
			b.Fatal(err)
		}
		for _, packed := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d,packed=%t", tasks, packed), func(b *testing.B) {
				b.ReportAllocs()
				size := 0
				out := newBatch()
				for range b.N {
					again := newBatch()
					again.codec.data, again.room = out.codec.data[:0], out.room
					out = again
					for _, r := range rows {
						out.append(time.Time{}, r)
					}
					size = len(out.codec.data)
					if packed {
						out.prepare(encoder)
						size = len(out.packed)
					}
				}
				b.ReportMetric(float64(size), "B/batch")
			})
		}
		encoder.Close()
	}
}
