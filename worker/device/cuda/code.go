package cuda

import (
	"container/list"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	gpu "github.com/millrace/millrace/memory/cuda"
)

// kernels/*.cubin are made of builtin.cu by tools/cubins, and manifest.json says
// of which source.
//
//go:embed kernels
var kernelFiles embed.FS

// BuiltinArchs are those that built-in kernels are compiled for beforehand.
var builtinArchs = []string{"sm_80", "sm_90", "sm_100"}

// builtinPTX is what devices get that none of those runs on: the driver translates it.
const builtinPTX = "compute_80"

// builtinFile is the code for an architecture: a CUBIN of the same major version and the highest minor version that is
// not above it, else PTX.
func builtinFile(major, minor int) string {
	for m := minor; m >= 0; m-- {
		if arch := fmt.Sprintf("sm_%d%d", major, m); slices.Contains(builtinArchs, arch) {
			return "builtin." + arch + ".cubin"
		}
	}
	return "builtin." + builtinPTX + ".ptx"
}

func kernelText(name string) string {
	b, err := kernelFiles.ReadFile("kernels/" + name)
	if err != nil {
		panic("cuda: " + err.Error())
	}
	return string(b)
}

// builtinSource is builtin.cu with what it includes.
func builtinSource() string {
	return strings.Replace(kernelText("builtin.cu"), "#include \"prelude.cuh\"\n", kernelText("prelude.cuh"), 1)
}

// manifest says what the CUBINs beside it are made of.
type manifest struct {
	// SourceSHA256 is that of builtin.cu with what it includes, Flags what it was
	// compiled with, by that version of NVRTC.
	SourceSHA256 string
	Flags        []string
	NVRTC        string
	// CUBINs are the files' hashes by architecture.
	CUBINs map[string]string
}

func builtinManifest() (manifest, error) {
	var m manifest
	err := json.Unmarshal([]byte(kernelText("manifest.json")), &m)
	return m, err
}

func sha256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// entry is a module that was asked for, perhaps being made.
type entry struct {
	once      sync.Once
	module    *gpu.Module
	err       error
	mu        sync.Mutex // guards functions
	functions map[string]*gpu.Function
}

// code keeps what was loaded onto the device. Generated kernels are kept by source, without end, since a
// program uses few of them; a flood of different ones empties it.
type code struct {
	device    *Device
	compiler  once[*compiler]
	disk      diskCache
	mu        sync.Mutex // guards what follows
	functions map[string]*entry
	retired   []*entry
	// builtins are those of the built-in kernels that were asked for.
	builtins map[string]*gpu.Function
	// users are the modules of users' sources, and recent the same ones, the last used first; at most maxUsers and
	// those in use.
	users    map[string]*userModule
	recent   list.List
	maxUsers int
}

// userModule is made of a source that a user has sent. Programs that generate sources can make any number of them,
// and each takes GPU memory outside of the slab: the least recently used modules are unloaded.
type userModule struct {
	entry
	key  string
	uses int // by calls that are under way; guarded by code.mu
	at   *list.Element
}

// maxUserModules is how many users' modules stay loaded: of some 100 KiB each.
const maxUserModules = 256

// user finds a kernel in a user's source. Its module stays until release, which the call owes when the kernel is over.
func (c *code) user(source, name string) (f *gpu.Function, release func(), err error) {
	c.mu.Lock()
	u := c.users[source]
	if u == nil {
		u = &userModule{entry: entry{functions: map[string]*gpu.Function{}}, key: source}
		u.at = c.recent.PushFront(u)
		c.users[source] = u
	}
	c.recent.MoveToFront(u.at)
	u.uses++
	var unused []*userModule
	for at := c.recent.Back(); at != nil && len(c.users) > c.maxUsers; {
		old, before := at.Value.(*userModule), at.Prev()
		if old.uses == 0 {
			c.drop(old)
			unused = append(unused, old)
		}
		at = before
	}
	c.mu.Unlock()
	release = func() {
		c.mu.Lock()
		u.uses--
		c.mu.Unlock()
	}
	for _, old := range unused {
		if old.module != nil {
			if err := old.module.Close(); err != nil {
				c.device.logf("cuda: a kernel's code is not unloaded: %v", err)
			}
		}
	}
	f, err = c.find(&u.entry, name, c.image("source", userFlags, func() string { return source }))
	if err != nil {
		release()
		var bad *compileError
		if u.err != nil && !errors.As(u.err, &bad) {
			// It may go well the next time.
			c.mu.Lock()
			if c.users[source] == u {
				c.drop(u)
			}
			c.mu.Unlock()
		}
		return nil, nil, err
	}
	return f, release, nil
}

// drop forgets a user's module. REQUIRES: mu is held.
func (c *code) drop(u *userModule) {
	delete(c.users, u.key)
	c.recent.Remove(u.at)
}

// maxModules is how many modules are loaded before all are given up.
const maxModules = 4096

func (c *code) getCompiler() (*compiler, error) {
	return c.compiler.get(func() (*compiler, error) {
		k, err := openCompiler(&c.device.finder)
		if err != nil {
			c.device.logf("cuda: no NVRTC: %v", err)
			return nil, err
		}
		c.device.logf("cuda: NVRTC %s from %s", k.version, k.lib.file)
		return k, nil
	})
}

// kernel finds a kernel of generated source, which is compiled if no cache has it.
// signature tells one source from another, and is shorter.
func (c *code) kernel(file, signature, name string, source func() string) (*gpu.Function, error) {
	return c.compiled(file, signature, name, compileFlags, source)
}

func (c *code) compiled(file, signature, name string, flags []string, generate func() string) (*gpu.Function, error) {
	return c.function(file+"\x00"+signature, name, c.image(file, flags, generate))
}

// image compiles a source, unless it is on the disk.
func (c *code) image(file string, flags []string, generate func() string) func() ([]byte, error) {
	return func() ([]byte, error) {
		k, err := c.getCompiler()
		if err != nil {
			return nil, err
		}
		source := generate()
		key := cacheKey(source, c.device.arch, k.version, strings.Join(flags, "\x00"))
		if cubin := c.disk.get(key); cubin != nil {
			return cubin, nil
		}
		cubin, err := k.compile(file, source, c.device.arch, flags)
		if err != nil {
			return nil, err
		}
		if err := c.disk.put(key, cubin); err != nil {
			c.device.logf("cuda: a compiled kernel is not kept: %v", err)
		}
		return cubin, nil
	}
}

// builtin finds one of the kernels of builtin.cu.
func (c *code) builtin(name string) (*gpu.Function, error) {
	c.mu.Lock()
	f := c.builtins[name]
	c.mu.Unlock()
	if f != nil {
		return f, nil
	}
	f, err := c.findBuiltin(name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.builtins[name] = f
	return f, nil
}

func (c *code) findBuiltin(name string) (*gpu.Function, error) {
	a := c.device.gpu.Info().Attributes
	if a.ComputeMajor < 8 {
		// Older than what the PTX is for.
		return c.kernel("builtin.cu", "", name, builtinSource)
	}
	// Each reading is a copy of some hundred KiB: only to load it.
	file := builtinFile(a.ComputeMajor, a.ComputeMinor)
	f, err := c.function("builtin", name, func() ([]byte, error) { return kernelFiles.ReadFile("kernels/" + file) })
	if err != nil && strings.HasSuffix(file, ".ptx") && c.device.gpu.Health() == nil {
		// A driver that is older than our NVRTC does not know its PTX.
		if compiled, failed := c.kernel("builtin.cu", "", name, builtinSource); failed == nil {
			return compiled, nil
		}
	}
	return f, err
}

func (c *code) function(key, name string, cubin func() ([]byte, error)) (*gpu.Function, error) {
	c.mu.Lock()
	e := c.functions[key]
	if e == nil {
		if len(c.functions) >= maxModules {
			for _, old := range c.functions {
				c.retired = append(c.retired, old)
			}
			clear(c.functions)
		}
		e = &entry{functions: map[string]*gpu.Function{}}
		c.functions[key] = e
	}
	c.mu.Unlock()
	f, err := c.find(e, name, cubin)
	if e.err != nil {
		c.forget(key, e)
	}
	return f, err
}

// find loads a module unless it is, and finds one of its kernels.
func (c *code) find(e *entry, name string, cubin func() ([]byte, error)) (*gpu.Function, error) {
	e.once.Do(func() {
		var image []byte
		if image, e.err = cubin(); e.err == nil {
			e.module, e.err = c.device.gpu.Load(image)
		}
	})
	if e.err != nil {
		return nil, e.err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.functions[name]; f != nil {
		return f, nil
	}
	f, err := e.module.Function(name)
	if err != nil {
		return nil, err
	}
	e.functions[name] = f
	return f, nil
}

// forget lets what failed be tried again, unless trying cannot help.
func (c *code) forget(key string, e *entry) {
	var bad *compileError
	if errors.As(e.err, &bad) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.functions[key] == e {
		delete(c.functions, key)
	}
}

// close unloads everything. REQUIRES: no kernel runs.
func (c *code) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, e := range c.functions {
		c.retired = append(c.retired, e)
	}
	for _, e := range c.retired {
		if e.module != nil {
			errs = append(errs, e.module.Close())
		}
	}
	for _, u := range c.users {
		if u.module != nil {
			errs = append(errs, u.module.Close())
		}
	}
	clear(c.users)
	c.recent.Init()
	clear(c.functions)
	clear(c.builtins)
	c.retired = nil
	return errors.Join(errs...)
}

// cType is what prelude.cuh calls a type.
func cType(name string) string {
	t, ok := map[string]string{
		"bool": "u8", "uint8": "u8", "int32": "i32", "int64": "i64", "float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128",
	}[name]
	if !ok {
		panic(fmt.Sprintf("cuda: no type for %s", name))
	}
	return t
}
