package faults

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	millrace "github.com/millrace/millrace/clients/go"
)

// TestDiskIsFull: spilling fails, and so do the tasks whose results fit nowhere else. The worker
// continues, and uses the disk again when it has room.
func TestDiskIsFull(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tiny", disk, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	c := start(t, 2)
	c.run(spec{host: 1, slab: "64MiB", args: []string{"--local-directory", disk, "--spill-limit", "1GiB"}})
	before := c.awaitWorker("w1-0")
	var kept []object
	var full error
	for i := int64(1); full == nil; i++ {
		o := c.stamp(i, 16<<20, nil)
		if full = o.future.Wait(c.ctx()); full == nil {
			kept = append(kept, o)
		}
		if len(kept) > 6 {
			t.Fatalf("%d objects of 16 MiB in a slab of 64 MiB and a disk of 24 MiB", len(kept))
		}
	}
	if !errors.Is(full, millrace.ErrOutOfMemory) || !strings.Contains(full.Error(), "no space left") {
		t.Errorf("the error does not say that the disk is full: %v", full)
	}
	if n := strings.Count(c.log.String(), "spilling failed"); n > 10 {
		t.Errorf("%d writes were tried on the full disk", n)
	}
	t.Logf("%d objects, then: %v", len(kept), full)
	release(kept[0])
	kept = kept[1:]
	release(append(readAll(c, 100, kept), kept...)...)
	c.awaitEmpty()
	// As many bytes as before fit again.
	again := []object{c.stamp(201, 16<<20, nil), c.stamp(202, 16<<20, nil), c.stamp(203, 16<<20, nil), c.stamp(204, 16<<20, nil)}
	c.wait(again...)
	if now := c.awaitWorker("w1-0"); now.GetIncarnation() != before.GetIncarnation() {
		t.Error("the worker died")
	}
}

// spilled starts a worker with many more bytes on its disk than in its slab.
func spilled(t *testing.T, disk string) (*cluster, []object) {
	t.Helper()
	c := start(t, 2)
	c.run(spec{host: 1, slab: "64MiB", args: []string{"--local-directory", disk, "--spill-limit", "1GiB"}})
	kept := c.stamps(100, 256<<20)
	return c, kept
}

// readAll reads every object by a task, and checks the results.
func readAll(c *cluster, first int64, of []object) (reads []object) {
	c.t.Helper()
	for i, o := range of {
		r := c.stamp(first+int64(i), 32, []object{o})
		c.checkStamp(r)
		reads = append(reads, r)
	}
	return reads
}

// TestDiskCannotBeRead: objects that cannot be read back are computed again.
func TestDiskCannotBeRead(t *testing.T) {
	t.Parallel()
	disk, broken := brokenDisk(t)
	c, kept := spilled(t, disk)
	before := c.awaitWorker("w1-0")
	broken.reads.Store(true)
	readAll(c, 1000, kept[:4])
	broken.reads.Store(false)
	readAll(c, 2000, kept)
	if now := c.awaitWorker("w1-0"); now.GetIncarnation() != before.GetIncarnation() {
		t.Error("the worker died")
	}
	c.awaitLogLine("input/output error")
	c.awaitLogLine("spilled object is lost")
}

// TestDiskCannotBeWritten: tasks without room for their results fail with the reason. Existing
// objects stay.
func TestDiskCannotBeWritten(t *testing.T) {
	t.Parallel()
	disk, broken := brokenDisk(t)
	broken.writes.Store(true)
	c := start(t, 2)
	c.run(spec{host: 1, slab: "64MiB", args: []string{"--local-directory", disk, "--spill-limit", "1GiB"}})
	before := c.awaitWorker("w1-0")
	kept := []object{c.stamp(1, 16<<20, nil), c.stamp(2, 16<<20, nil), c.stamp(3, 16<<20, nil)}
	c.wait(kept...)
	err := c.stamp(4, 16<<20, nil).future.Wait(c.ctx())
	if !errors.Is(err, millrace.ErrOutOfMemory) || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("the error does not have the error of the disk: %v", err)
	}
	readAll(c, 1000, kept)
	if now := c.awaitWorker("w1-0"); now.GetIncarnation() != before.GetIncarnation() {
		t.Error("the worker died")
	}
}

// TestCorruptedSpillFile: the checksum detects the damage, and the lost objects are computed again.
func TestCorruptedSpillFile(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	c, kept := spilled(t, disk)
	files, err := filepath.Glob(filepath.Join(disk, "millrace-worker-*", "data"))
	if err != nil || len(files) != 1 {
		t.Fatalf("spill files: %v, %v", files, err)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for off := int64(100); off < info.Size(); off += 1 << 20 {
		if _, err := f.WriteAt([]byte("corrupted"), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	readAll(c, 1000, kept)
	c.awaitLogLine("spilled object is lost")
	c.awaitLogLine("checksum")
}

// diskFaults selects the operations of a disk that fail.
type diskFaults struct{ reads, writes atomic.Bool }

// brokenDisk returns a directory in a file system that fails on demand.
func brokenDisk(t *testing.T) (string, *diskFaults) {
	t.Helper()
	below, at := t.TempDir(), t.TempDir()
	var info syscall.Stat_t
	if err := syscall.Stat(below, &info); err != nil {
		t.Fatal(err)
	}
	f := new(diskFaults)
	root := &fs.LoopbackRoot{Path: below, Dev: uint64(info.Dev)} //nolint:unconvert // it is narrower elsewhere
	root.NewNode = func(r *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &faultyNode{LoopbackNode: fs.LoopbackNode{RootData: r}, faults: f}
	}
	root.RootNode = root.NewNode(root, nil, "", &info)
	server, err := fs.Mount(at, root.RootNode, &fs.Options{MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "faulty", AllowOther: true}})
	if err != nil {
		t.Fatalf("a FUSE file system at %s: %v", at, err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(at, unix.MNT_DETACH)
		server.Wait()
	})
	return at, f
}

type faultyNode struct {
	fs.LoopbackNode
	faults *diskFaults
}

var (
	_ fs.NodeReader = (*faultyNode)(nil)
	_ fs.NodeWriter = (*faultyNode)(nil)
)

// Create is part of fs.NodeCreater. It drops O_DIRECT, because FUSE's buffers are not aligned for
// it.
func (n *faultyNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	i, h, _, errno := n.LoopbackNode.Create(ctx, name, flags&^syscall.O_DIRECT, mode, out)
	return i, h, fuse.FOPEN_DIRECT_IO, errno
}

// Open is part of fs.NodeOpener.
func (n *faultyNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, _, errno := n.LoopbackNode.Open(ctx, flags&^syscall.O_DIRECT)
	return h, fuse.FOPEN_DIRECT_IO, errno
}

// Read is part of fs.NodeReader.
func (n *faultyNode) Read(ctx context.Context, h fs.FileHandle, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if n.faults.reads.Load() {
		return nil, syscall.EIO
	}
	return h.(fs.FileReader).Read(ctx, p, off)
}

// Write is part of fs.NodeWriter.
func (n *faultyNode) Write(ctx context.Context, h fs.FileHandle, p []byte, off int64) (uint32, syscall.Errno) {
	if n.faults.writes.Load() {
		return 0, syscall.EIO
	}
	return h.(fs.FileWriter).Write(ctx, p, off)
}
