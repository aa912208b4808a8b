package faults

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// object is a stamped object.
type object struct {
	future     *millrace.Future
	key, bytes int64
}

// stamp submits a task that checks its inputs, and makes an object of the given size. Every word of
// the object contains the key.
func (c *cluster) stamp(key, bytes int64, inputs []object, options ...millrace.TaskOption) object {
	c.t.Helper()
	keys, args := make([]int64, 0, len(inputs)), []any{key, bytes, nil}
	for _, in := range inputs {
		keys, args = append(keys, in.key), append(args, in.future)
	}
	args[2] = keys
	return object{c.submit("bench.stamp", millrace.Args(args...), options...), key, bytes}
}

// stamps makes 16 objects that have total bytes together, and waits for them. Their keys begin with
// first.
func (c *cluster) stamps(first, total int64, options ...millrace.TaskOption) []object {
	c.t.Helper()
	const pieces = 16
	var out []object
	for i := range int64(pieces) {
		out = append(out, c.stamp(first+i, total/pieces, nil, options...))
	}
	c.wait(out...)
	return out
}

func (c *cluster) wait(of ...object) {
	c.t.Helper()
	ctx := c.ctx()
	for _, o := range of {
		if err := o.future.Wait(ctx); err != nil {
			c.t.Fatalf("%s: %v", o.future.Key(), err)
		}
	}
}

// checkStamp waits for a small object, and checks its size and its key.
func (c *cluster) checkStamp(o object) {
	c.t.Helper()
	began := time.Now()
	a, err := o.future.Array(c.ctx())
	if err != nil {
		c.t.Fatalf("%s, after %v: %v", o.future.Key(), time.Since(began).Round(time.Millisecond), err)
	}
	b, err := millrace.Slice[byte](a)
	if err != nil || int64(len(b)) != o.bytes || int64(binary.LittleEndian.Uint64(b)) != o.key {
		c.t.Fatalf("%s: %d bytes that begin with %x, %v; it should be %d of key %d", o.future.Key(), len(b), b[:min(len(b), 8)], err, o.bytes, o.key)
	}
	c.t.Logf("the right bytes after %v", time.Since(began).Round(time.Millisecond))
}

// release releases objects.
func release(of ...object) {
	for _, o := range of {
		o.future.Release()
	}
}

// awaitEmpty waits until all slabs are empty.
func (c *cluster) awaitEmpty() {
	c.t.Helper()
	began := time.Now()
	var list []*millracev1.Worker
	c.until("all slabs are empty", func() bool {
		var err error
		if list, err = c.client.Workers(c.t.Context(), millracev1.WorkerState_WORKER_STATE_ACTIVE); err != nil {
			c.t.Fatal(err)
		}
		for _, w := range list {
			if w.GetMemoryUsedBytes() > 0 {
				return false
			}
		}
		return true
	})
	c.t.Logf("all slabs are empty after %v", time.Since(began).Round(time.Millisecond))
}

// awaitArrival waits until a worker has n more resident bytes than before.
func (c *cluster) awaitArrival(w *millracev1.Worker, before, n int64) {
	c.t.Helper()
	c.until(fmt.Sprintf("%d bytes have arrived at %s", n, w.GetName()), func() bool { return residentBytes(c.t, w) >= before+n })
}

// residentBytes returns the bytes of its own and of other slabs that a worker has resident.
func residentBytes(t *testing.T, w *millracev1.Worker) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.GetPid()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(text, []byte("RssShmem:"))
	kib, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
