//go:build cgo && linux

package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// noteRate records a measured rate. It does so only on a real GPU.
func noteRate(t *testing.T, name string, bytes int, took time.Duration) {
	t.Helper()
	if os.Getenv("MILLRACE_CUDA_REAL") == "" {
		return
	}
	rate := float64(bytes) / float64(took)
	t.Logf("%-40s %10.2f GB/s", name, rate)
	file, err := os.OpenFile(os.Getenv("MILLRACE_RATES"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // no file is configured
	}
	_, err = fmt.Fprintf(file, "%-40s %10.2f GB/s\n", name, rate)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Error(err)
	}
}

// heapSink receives one object in heap memory.
type heapSink struct {
	data []byte
	err  error
}

type heap []byte

func (h heap) Size() uint64               { return uint64(len(h)) }
func (h heap) Identity() memory.Identity  { return memory.Identity{} }
func (h heap) Bytes(off, n uint64) []byte { return h[off : off+n : off+n] }
func (h heap) FD() int                    { return -1 }

func (*heapSink) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

func (s *heapSink) Place(_ context.Context, _ int, head transfer.Head) ([]transfer.Region, error) {
	if uint64(len(s.data)) < head.Bytes() {
		s.data = make([]byte, head.Bytes())
	}
	return []transfer.Region{{Space: heap(s.data), Frame: memory.Frame{Bytes: head.Bytes()}}}, nil
}

func (s *heapSink) Done(_ int, err error) { s.err = err }

// Objects are written to a GPU worker and read back by each path that clients have.
func TestGPUClientsScatterAndGather(t *testing.T) {
	size, times := 9<<20, 1
	change := func(c *worker.Config) {
		small(c)
		c.Device, c.DeviceMemoryLimit, c.PinnedLimitBytes = worker.DeviceCUDA, cuda.Size{Bytes: 2 << 30}, 2<<30
	}
	if os.Getenv("MILLRACE_CUDA_REAL") == "" {
		_, change = onGPU(t)
	} else {
		size, times = 256<<20, 3
	}
	w := start(t, workertest.NewScheduler(t), change)
	address := w.Registration.GetDataAddress()
	d := data(t, address)
	content := random(1, size)
	for i := range times {
		begin := time.Now()
		if err := write(t, d, uint64(100+i), bytesTensor(size), content); err != nil {
			t.Fatal(err)
		}
		noteRate(t, "scatter 256 MiB by gRPC", size, time.Since(begin))
		begin = time.Now()
		back, err := drained(t.Context(), d, uint64(100+i), size)
		noteRate(t, "gather 256 MiB by gRPC", size, time.Since(begin))
		if err != nil || !bytes.Equal(back, content) {
			t.Errorf("other bytes came back: %v", err)
		}
		if i > 0 {
			w.release(uint64(100+i), 1)
		}
	}
	path := grpcpath.New(grpcpath.Config{StallTimeout: workertest.EventTimeout, Streams: 4})
	sink := new(heapSink)
	for range times {
		begin := time.Now()
		err := path.Fetch(t.Context(), transfer.Peer{Worker: 1, Name: "host-0", Address: address}, []transfer.Ref{{Task: 100, Generation: 1}}, sink)
		noteRate(t, "gather 256 MiB by bare streams", size, time.Since(begin))
		if err != nil || sink.err != nil || !bytes.Equal(sink.data, content) {
			t.Errorf("other bytes came back: %v, %v", err, sink.err)
		}
		clear(sink.data)
	}
	if err := path.Close(); err != nil {
		t.Error(err)
	}
	w.end(t)
}

// drained reads an object as the Go client does.
func drained(ctx context.Context, d millracev1.DataServiceClient, task uint64, size int) ([]byte, error) {
	in, err := d.ReadObjects(ctx, &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{{TaskId: task, Generation: 1}}})
	if err != nil {
		return nil, err
	}
	back := make([]byte, size)
	for {
		var r rawframe.ReadResponse
		if err := in.RecvMsg(&r); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return back, err
		}
		if r.Error != nil {
			return nil, errors.New(r.Error.GetMessage())
		}
		r.Data.CopyTo(back[r.Offset:])
		r.Data.Free()
	}
}
