package cuda

import (
	"container/list"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	gpu "github.com/millrace/millrace/memory/cuda"
)

// The files kernels/*.cubin and the PTX are compiled from builtin.cu by tools/cubins. manifest.json
// records the source that they were compiled from.
//
//go:embed kernels
var kernelFiles embed.FS

// builtinArchs are the architectures that the built-in kernels are compiled for in advance.
var builtinArchs = []string{"sm_80", "sm_90", "sm_100"}

// builtinPTX names the PTX for devices that can run none of those CUBINs. The driver compiles it.
const builtinPTX = "compute_80"

// builtinFile returns the file with the code for a device: a CUBIN of the same major version and
// the highest minor version that is not above the device's, otherwise the PTX.
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

// builtinSource returns builtin.cu with its include expanded.
func builtinSource() string {
	return strings.Replace(kernelText("builtin.cu"), "#include \"prelude.cuh\"\n", kernelText("prelude.cuh"), 1)
}

// entry is a module that was requested. Its loading may be in progress.
type entry struct {
	once      sync.Once
	module    *gpu.Module
	err       error
	mu        sync.Mutex // guards functions
	functions map[string]*gpu.Function
}

// code keeps the modules that were loaded onto the device. Generated kernels are kept by source. A
// program uses few of them, so they are not evicted one by one: when there are maxModules of them,
// the table is emptied. Its modules are unloaded when the calls that may use them have ended.
type code struct {
	device   *Device
	compiler once[*compiler]
	disk     diskCache
	mu       sync.Mutex // guards the fields below
	// functions has the modules of generated kernels. builtinModules has those of the built-in
	// kernels, which stay until close.
	functions, builtinModules map[string]*entry
	// maxModules is the number of modules at which the table of functions is emptied. It is not
	// changed while calls are in progress.
	maxModules int
	// current is the present generation. retired are the earlier ones that still have modules,
	// oldest first.
	current *generation
	retired []*generation
	// builtins are the built-in kernels that were requested so far.
	builtins map[string]*gpu.Function
	// users are the modules of users' sources. recent lists the same modules, the most recently
	// used first. There are at most maxUsers, or more if those are all in use.
	users    map[string]*userModule
	recent   list.List
	maxUsers int
}

// generation is the time between two emptyings of the table of functions. A call uses only modules
// that were in the table at some time between its begin and its end: the remembered decisions,
// which refer to functions, are dropped together with the table. So the modules of a generation can
// be unloaded when it is over and all calls that began in it, or before it, have ended.
type generation struct {
	// calls is the number of calls in progress that began in this generation.
	calls   int
	modules []*entry
}

// userModule is compiled from a source that a user has sent. A program can generate any number of
// sources, and each module takes GPU memory outside of the slab: therefore the least recently used
// modules are unloaded.
type userModule struct {
	entry
	key  string
	uses int // calls in progress that use it; guarded by code.mu
	at   *list.Element
}

// maxUserModules is how many users' modules stay loaded. Each takes some 100 KiB.
const maxUserModules = 256

// user finds a kernel in a user's source. The module stays loaded until the caller calls release,
// which it must do when the kernel has ended.
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
	var unused []*entry
	for at := c.recent.Back(); at != nil && len(c.users) > c.maxUsers; {
		old, before := at.Value.(*userModule), at.Prev()
		if old.uses == 0 {
			c.drop(old)
			unused = append(unused, &old.entry)
		}
		at = before
	}
	c.mu.Unlock()
	release = func() {
		c.mu.Lock()
		u.uses--
		c.mu.Unlock()
	}
	c.unload(unused)
	f, err = c.find(&u.entry, name, c.image("source", userFlags, func() string { return source }))
	if err != nil {
		release()
		var bad *compileError
		if u.err != nil && !errors.As(u.err, &bad) {
			// The error may be temporary: let the next call try again.
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

// drop removes a user's module from the tables. It does not unload it. REQUIRES: mu is held.
func (c *code) drop(u *userModule) {
	delete(c.users, u.key)
	c.recent.Remove(u.at)
}

const (
	// maxModules is the usual code.maxModules.
	maxModules = 4096
	// unloadAtOnce is how many retired modules a call unloads for each module that it loads. It is
	// more than one, so that the modules become fewer, and small, so that no call takes long.
	unloadAtOnce = 2
)

// begin notes that a call begins. The caller passes the result to end when the call has ended.
func (c *code) begin() *generation {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.calls++
	return c.current
}

func (c *code) end(g *generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.calls--
}

// retire empties the table of functions, and with it the decisions that refer to functions.
// REQUIRES: mu is held.
func (c *code) retire() {
	// NB: the decisions are dropped first. A decision that is made now either is not kept, or waits
	// for mu and takes its function from the new table. A call that begins after this one has
	// released mu finds no decision with a function of the old table.
	c.device.mappers.drop()
	c.device.reducers.drop()
	for _, e := range c.functions {
		c.current.modules = append(c.current.modules, e)
	}
	clear(c.functions)
	c.retired = append(c.retired, c.current)
	c.current = &generation{}
}

// unused takes up to n modules that no call can use any more out of the retired generations. The
// caller unloads them. REQUIRES: mu is held.
func (c *code) unused(n int) (modules []*entry) {
	for len(c.retired) > 0 && c.retired[0].calls == 0 && len(modules) < n {
		g := c.retired[0]
		k := min(n-len(modules), len(g.modules))
		modules = append(modules, g.modules[:k]...)
		if g.modules = g.modules[k:]; len(g.modules) == 0 {
			c.retired = c.retired[1:]
		}
	}
	return modules
}

// unload unloads modules that no call uses.
func (c *code) unload(modules []*entry) {
	for _, e := range modules {
		if e.module != nil {
			if err := e.module.Close(); err != nil {
				c.device.logf("cuda: a kernel's code is not unloaded: %v", err)
			}
		}
	}
}

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

// kernel finds a kernel in a generated source. The source is compiled if no cache has it. The
// signature identifies the source among those of the same file, and is shorter than the source.
func (c *code) kernel(file, signature, name string, source func() string) (*gpu.Function, error) {
	return c.function(c.functions, file+"\x00"+signature, name, c.image(file, compileFlags, source))
}

// image returns a function that compiles a source, or reads the result from the disk cache.
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
	compiled := func() (*gpu.Function, error) {
		return c.function(c.builtinModules, "compiled", name, c.image("builtin.cu", compileFlags, builtinSource))
	}
	if a.ComputeMajor < 8 {
		// The device is older than the architecture of the PTX.
		return compiled()
	}
	// Every read copies some hundred KiB, so read the file only to load it.
	file := builtinFile(a.ComputeMajor, a.ComputeMinor)
	f, err := c.function(c.builtinModules, "embedded", name, func() ([]byte, error) { return kernelFiles.ReadFile("kernels/" + file) })
	if err != nil && strings.HasSuffix(file, ".ptx") && c.device.gpu.Health() == nil {
		// A driver that is older than our NVRTC does not accept its PTX.
		if own, failed := compiled(); failed == nil {
			return own, nil
		}
	}
	return f, err
}

// function finds a kernel of the module with that key in one of the tables.
func (c *code) function(table map[string]*entry, key, name string, cubin func() ([]byte, error)) (*gpu.Function, error) {
	var unused []*entry
	c.mu.Lock()
	e := table[key]
	if e == nil {
		if len(c.functions) >= c.maxModules {
			c.retire()
		}
		e = &entry{functions: map[string]*gpu.Function{}}
		table[key] = e
		unused = c.unused(unloadAtOnce)
	}
	c.mu.Unlock()
	c.unload(unused)
	f, err := c.find(e, name, cubin)
	if e.err != nil {
		c.forget(table, key, e)
	}
	return f, err
}

// find loads the module if it is not loaded yet, and finds one of its kernels.
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

// forget removes a failed entry, so that the next call tries again. It keeps the entry if the
// source does not compile: then another attempt cannot help.
func (c *code) forget(table map[string]*entry, key string, e *entry) {
	var bad *compileError
	if errors.As(e.err, &bad) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if table[key] == e {
		delete(table, key)
	}
}

// close unloads all modules. REQUIRES: no kernel runs.
func (c *code) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	c.retire()
	for _, g := range c.retired {
		for _, e := range g.modules {
			if e.module != nil {
				errs = append(errs, e.module.Close())
			}
		}
	}
	for _, e := range c.builtinModules {
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
	clear(c.builtinModules)
	clear(c.builtins)
	c.retired = nil
	return errors.Join(errs...)
}

// cType returns the name of a type in prelude.cuh.
func cType(name string) string {
	t, ok := map[string]string{
		"bool": "u8", "uint8": "u8", "int32": "i32", "int64": "i64", "float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128",
	}[name]
	if !ok {
		panic(fmt.Sprintf("cuda: no type for %s", name))
	}
	return t
}
