package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
)

// assets are the built files of the dashboard. `make web` writes them.
//
//go:embed all:assets
var assets embed.FS

// files serves the embedded files by their names.
type files map[string]*file

type file struct {
	content      []byte
	kind, tag    string
	cacheControl string
	compressed   func() []byte
	worthwhile   bool // to compress
}

// hashed matches names with a hash of the content, as esbuild makes them. Such a file never
// changes.
var hashed = regexp.MustCompile(`-[0-9A-Z]{8}\.`)

// kinds are the types of files by the endings of their names.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".json": "application/json", ".woff2": "font/woff2", ".txt": "text/plain; charset=utf-8",
}

func loadFiles() files {
	loaded := files{}
	err := fs.WalkDir(assets, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := assets.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		f := &file{content: content, kind: kinds[path.Ext(name)], tag: `"` + hex.EncodeToString(sum[:8]) + `"`, cacheControl: "no-cache"}
		if f.kind == "" {
			f.kind = "application/octet-stream"
		}
		if hashed.MatchString(name) {
			f.cacheControl = "public, max-age=31536000, immutable"
		}
		f.worthwhile = f.kind != "image/png" && f.kind != "font/woff2"
		f.compressed = sync.OnceValue(func() []byte { return compress(content) })
		loaded[strings.TrimPrefix(name, "assets/")] = f
		return nil
	})
	if err != nil {
		panic(err) // The files are part of the binary.
	}
	return loaded
}

func compress(content []byte) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		_, _ = w.Write(content) // A buffer takes everything.
		err = w.Close()
	}
	if err != nil {
		panic(err) // The level is valid.
	}
	return out.Bytes()
}

// ServeHTTP serves the file with the name in the path.
func (f files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found := f[r.PathValue("path")]
	if found == nil {
		plain(w, http.StatusNotFound, "there is no such page: the dashboard is at the top of this address")
		return
	}
	found.ServeHTTP(w, r)
}

// page serves one file.
func (f files) page(name string) http.Handler {
	if found := f[name]; found != nil {
		return found
	}
	return http.NotFoundHandler()
}

// ServeHTTP serves the file, compressed if the browser can read that.
func (f *file) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", f.cacheControl)
	h.Set("ETag", f.tag)
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	content := f.content
	if f.worthwhile {
		h.Set("Vary", "Accept-Encoding")
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			content = f.compressed()
		}
	}
	_, _ = w.Write(content) // An error means that the reader has left.
}
