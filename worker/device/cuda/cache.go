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
)

// diskCache keeps compiled kernels (CUBINs) in files that are named by a hash of all inputs of the
// compilation. All processes of a user share it. A damaged file counts as missing: its kernel is
// compiled again.
type diskCache struct {
	dir string // "" keeps nothing
	// maxBytes is the total size above which sweep removes the files that were written longest ago,
	// down to half of it.
	maxBytes int64
	writes   atomic.Int64
}

const (
	defaultCacheBytes = 256 << 20
	cubinSuffix       = ".cubin"
	// sweepEvery is the number of writes between two checks of the total size.
	sweepEvery = 64
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
	return b[sha256.Size:]
}

// put keeps a CUBIN. A failure costs only time: the kernel will be compiled again.
func (c *diskCache) put(key string, cubin []byte) error {
	if c.dir == "" {
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(c.dir, "new-*")
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

// sweep removes the oldest files if the total size exceeds maxBytes.
func (c *diskCache) sweep() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	var total int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), cubinSuffix) {
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
