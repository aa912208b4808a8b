package journal

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

var errDisk = errors.New("the disk is broken")

// disk is a Files in memory that knows what is durable, and that can be broken.
type disk struct {
	mu sync.Mutex
	// files are the contents as the process sees them. durable are the files, by name, whose names
	// are durable.
	files   map[string]*diskContent
	durable map[string]*diskContent
	// failWrite and failSync count down the calls until one fails; 0: none fails. A write that
	// fails writes half of its bytes. fullBytes, if not 0, bounds the bytes of all files.
	failWrite, failSync, fullBytes int
	// failOpen counts down the files that are made until one cannot be.
	failOpen int
	// stopAt is the number of the change from which on all fail; 0: none. changes counts them.
	stopAt, changes int
	syncs           int
	// onSync, if set, is called before each sync of a file.
	onSync func()
}

// diskContent is a file. The system keeps data in memory, and has written the clean first bytes of
// it, so it believes. stable is what the disk has of them: a sync that fails loses bytes, and the
// next one does not write them again, as in Linux.
type diskContent struct {
	data, stable []byte
	clean        int
}

func newDisk() *disk {
	return &disk{files: map[string]*diskContent{}, durable: map[string]*diskContent{}}
}

// change counts a change, and reports whether it fails.
func (d *disk) change() bool {
	d.changes++
	return d.stopAt > 0 && d.changes >= d.stopAt
}

// counted returns the number of changes so far.
func (d *disk) counted() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changes
}

func (d *disk) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.files)), nil
}

func (d *disk) Read(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.files[name]; f != nil {
		return bytes.Clone(f.data), nil
	}
	return nil, fs.ErrNotExist
}

func (d *disk) ReadPart(name string, offset, size int64) ([]byte, error) {
	data, err := d.Read(name)
	if err == nil && int64(len(data)) < offset+size {
		err = errors.New("the file is too short")
	}
	if err != nil {
		return nil, err
	}
	return data[offset : offset+size], nil
}

func (d *disk) Size(name string) (int64, error) {
	data, err := d.Read(name)
	return int64(len(data)), err
}

func (d *disk) Append(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		if d.change() || d.fails(&d.failOpen) {
			return nil, errDisk
		}
		d.files[name] = &diskContent{}
	}
	return &openFile{d, d.files[name]}, nil
}

func (d *disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.change() {
		return errDisk
	}
	d.files[to] = d.files[from]
	delete(d.files, from)
	return nil
}

func (d *disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.change() {
		return errDisk
	}
	delete(d.files, name)
	return nil
}

func (d *disk) SyncNames() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.change() || d.fails(&d.failSync) {
		return errDisk
	}
	d.durable = maps.Clone(d.files)
	return nil
}

func (d *disk) fails(count *int) bool {
	if *count > 0 {
		if *count--; *count == 0 {
			return true
		}
	}
	return false
}

// left returns the disk as another process finds it after this one was killed. The journal of this
// one can change nothing any more.
func (d *disk) left() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	again, copies := newDisk(), map[*diskContent]*diskContent{}
	again.changes = d.changes
	clone := func(f *diskContent) *diskContent {
		if copies[f] == nil {
			copies[f] = &diskContent{bytes.Clone(f.data), bytes.Clone(f.stable), f.clean}
		}
		return copies[f]
	}
	for name, f := range d.files {
		again.files[name] = clone(f)
	}
	for name, f := range d.durable {
		again.durable[name] = clone(f)
	}
	d.stopAt = 1
	return again
}

// The shapes of bytes that were not durable, after a loss of power.
const (
	tornShort  = iota // the first ones are there
	tornWrong         // the last of these is wrong
	tornZeros         // all of these are zeros
	tornHole          // the first half of these is zeros
	tornShapes = iota
)

// crash loses what is not durable, except for the first rest bytes of each file that was not
// synced to its end, and breaks these.
func (d *disk) crash(rest, shape int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := map[string]*diskContent{}
	for name, f := range d.durable {
		kept := bytes.Clone(f.data[f.clean:min(len(f.data), f.clean+rest)])
		switch {
		case shape == tornWrong && len(kept) > 0:
			kept[len(kept)-1] ^= 0x55
		case shape == tornZeros:
			clear(kept)
		case shape == tornHole:
			clear(kept[:len(kept)/2])
		}
		data := append(bytes.Clone(f.stable[:f.clean]), kept...)
		files[name] = &diskContent{data, bytes.Clone(data), len(data)}
	}
	d.files, d.durable = files, maps.Clone(files)
}

type openFile struct {
	disk *disk
	*diskContent
}

func (f *openFile) Write(p []byte) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	total := len(p)
	for _, other := range f.disk.files {
		total += len(other.data)
	}
	stopped := f.disk.change()
	if stopped && f.disk.changes > f.disk.stopAt {
		return 0, errDisk
	}
	if stopped || f.disk.fails(&f.disk.failWrite) || f.disk.fullBytes > 0 && total > f.disk.fullBytes {
		f.data = append(f.data, p[:len(p)/2]...)
		return len(p) / 2, errDisk
	}
	f.data = append(f.data, p...)
	return len(p), nil
}

func (f *openFile) Sync() error {
	if f.disk.onSync != nil {
		f.disk.onSync()
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.syncs++
	if f.disk.change() {
		return errDisk
	}
	lost := f.disk.fails(&f.disk.failSync)
	written := bytes.Clone(f.data[f.clean:])
	if lost {
		clear(written)
	}
	f.stable, f.clean = append(f.stable[:f.clean:f.clean], written...), len(f.data)
	if lost {
		return errDisk
	}
	return nil
}

func (f *openFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.change() {
		return errDisk
	}
	f.data = f.data[:size:size]
	f.clean = min(f.clean, int(size))
	f.stable = f.stable[:f.clean:f.clean]
	return nil
}

func (f *openFile) Close() error { return nil }

// Each directory that gets a new directory is synced.
func TestNewDirectoriesAreDurable(t *testing.T) {
	base := t.TempDir()
	var synced []string
	note := func(name string) error {
		synced = append(synced, name)
		return nil
	}
	for range 2 { // The second time there is nothing to make.
		if err := makeDirectory(filepath.Join(base, "a", "b"), note); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{base, filepath.Join(base, "a")}; !slices.Equal(synced, want) {
		t.Errorf("%q are synced, not %q", synced, want)
	}
	files, err := OpenDirectory(filepath.Join(base, "a", "b", "c"))
	if err != nil {
		t.Fatal(err)
	}
	if err := PutFile(files, "x", []byte("contents")); err != nil {
		t.Fatal(err)
	}
	if part, err := files.ReadPart("x", 3, 4); err != nil || string(part) != "tent" {
		t.Errorf("%q, %v", part, err)
	}
	if part, err := files.ReadPart("x", 3, 1<<40); err == nil {
		t.Errorf("%q is beyond the end", part)
	}
	if err := files.Close(); err != nil {
		t.Error(err)
	}
}

// A file is there with all its contents, or not at all.
func TestAFileIsPutAsAWhole(t *testing.T) {
	for stop := 1; ; stop++ {
		files := newDisk()
		files.stopAt = stop
		err := PutFile(files, "token", []byte("secret"))
		after := files.left()
		after.crash(stop%4, stop%tornShapes)
		data, missing := after.Read("token")
		if missing == nil && string(data) != "secret" || missing != nil && err == nil {
			t.Errorf("power is lost at change %d: %q, %v, %v", stop, data, missing, err)
		}
		if err == nil {
			return
		}
	}
}
