package journal

import (
	"errors"
	"maps"
	"slices"
	"sync"
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
	syncs                          int
}

type diskContent struct {
	data   []byte
	synced int // bytes that are durable, unless the file was cut below them
}

func newDisk() *disk {
	return &disk{files: map[string]*diskContent{}, durable: map[string]*diskContent{}}
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
		return slices.Clone(f.data), nil
	}
	return nil, errors.New("there is no file " + name)
}

func (d *disk) Append(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		d.files[name] = &diskContent{}
	}
	return &openFile{d, d.files[name]}, nil
}

func (d *disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[to] = d.files[from]
	delete(d.files, from)
	return nil
}

func (d *disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, name)
	return nil
}

func (d *disk) SyncNames() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails(&d.failSync) {
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

// crash loses what is not durable, except for the first rest bytes of each file that was not
// synced to its end. torn overwrites the last byte that was kept in this way.
func (d *disk) crash(rest int, torn bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := map[string]*diskContent{}
	for name, f := range d.durable {
		kept := min(len(f.data), f.synced+rest)
		data := slices.Clone(f.data[:kept])
		if torn && kept > f.synced {
			data[kept-1] ^= 0x55
		}
		files[name] = &diskContent{data: data, synced: kept}
	}
	d.files, d.durable = files, maps.Clone(files)
	d.failWrite, d.failSync, d.fullBytes = 0, 0, 0
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
	if f.disk.fails(&f.disk.failWrite) || f.disk.fullBytes > 0 && total > f.disk.fullBytes {
		f.data = append(f.data, p[:len(p)/2]...)
		return len(p) / 2, errDisk
	}
	f.data = append(f.data, p...)
	return len(p), nil
}

func (f *openFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.syncs++
	if f.disk.fails(&f.disk.failSync) {
		return errDisk
	}
	f.synced = len(f.data)
	return nil
}

func (f *openFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.data = f.data[:size]
	f.synced = min(f.synced, int(size))
	return nil
}

func (f *openFile) Close() error { return nil }
