package cuda

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// diskCache keeps compiled kernels (CUBINs) in files that are named by a hash of all inputs of the
// compilation. All processes of a user share it. A damaged file counts as missing: its kernel is
// compiled again.
type diskCache struct {
	dir string // "" keeps nothing
	// maxBytes is the total size above which sweep removes the files that were used longest ago,
	// down to half of it. The modification time of a file is the time of its last use, give or take
	// touchEvery.
	maxBytes int64
	writes   atomic.Int64
}

const (
	// defaultCacheBytes is the maxBytes of a device's cache: the disk belongs to the user, and a
	// kernel that was removed is only compiled again.
	defaultCacheBytes = 256 << 20

	cubinSuffix = ".cubin"
	tempPrefix  = "new-"
	// sweepEvery is the number of writes between two checks of the total size.
	sweepEvery = 64
	// touchEvery is the least time between two updates of the modification time of a file.
	touchEvery = time.Hour
	// tempAge is the age at which a temporary file counts as left behind by a process that was
	// killed: a write takes milliseconds.
	tempAge = time.Hour
)

func cacheKey(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// get returns the CUBIN for the key, or nil if its file is missing or damaged. A file holds the
// SHA-256 of the CUBIN, then the CUBIN.
func (c *diskCache) get(key string) []byte {
	if c.dir == "" {
		return nil
	}
	b, err := os.ReadFile(c.path(key))
	if err != nil || len(b) < sha256.Size {
		return nil
	}
	sum := sha256.Sum256(b[sha256.Size:])
	if !bytes.Equal(sum[:], b[:sha256.Size]) {
		return nil
	}
	c.touch(key)
	return b[sha256.Size:]
}

// touch notes that a file is in use, so that sweep keeps it. A failure has no effect but an earlier
// removal, for example in a folder that this process may only read.
func (c *diskCache) touch(key string) {
	now := time.Now()
	if info, err := os.Stat(c.path(key)); err == nil && now.Sub(info.ModTime()) > touchEvery {
		_ = os.Chtimes(c.path(key), now, now)
	}
}

// put keeps a CUBIN. A failure costs only time: the kernel will be compiled again.
func (c *diskCache) put(key string, cubin []byte) error {
	if c.dir == "" {
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(c.dir, tempPrefix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	sum := sha256.Sum256(cubin)
	if _, err = file.Write(append(sum[:], cubin...)); err == nil {
		err = file.Close()
	}
	if err == nil {
		err = os.Rename(file.Name(), c.path(key))
	}
	if err == nil && c.writes.Add(1)%sweepEvery == 1 {
		err = c.sweep()
	}
	return err
}

func (c *diskCache) path(key string) string { return filepath.Join(c.dir, key+cubinSuffix) }

// sweep removes the temporary files that killed processes have left. If the total size exceeds
// maxBytes, it also removes the files that were used longest ago.
func (c *diskCache) sweep() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil: // another process has removed it
		case strings.HasPrefix(e.Name(), tempPrefix):
			if time.Since(info.ModTime()) > tempAge {
				_ = os.Remove(filepath.Join(c.dir, e.Name())) // or another process does
			}
		case strings.HasSuffix(e.Name(), cubinSuffix):
			files = append(files, info)
			total += info.Size()
		}
	}
	if total <= c.maxBytes {
		return nil
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, f := range files {
		if total <= c.maxBytes/2 {
			break
		}
		if err := os.Remove(filepath.Join(c.dir, f.Name())); err == nil {
			total -= f.Size()
		}
	}
	return nil
}
