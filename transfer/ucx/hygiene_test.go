//go:build cgo && linux

package ucx_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

// openAsChild opens a context in a process of its own, with the library and the limits of the
// order, and prints the result.
func openAsChild(order childOrder) error {
	if order.Files > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: order.Files, Max: order.Files}); err != nil {
			return err
		}
	}
	if order.NoLockedMemory {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}); err != nil {
			return err
		}
	}
	space, err := openSlab(os.NewFile(3, "slab"), order.SlabBytes)
	if err != nil {
		return err
	}
	c, err := ucx.Open(ucx.Config{Library: order.Library, TLS: order.TLS, NetDevices: "lo", Space: space})
	if err == nil {
		err = c.Close()
	}
	fmt.Printf("opened: %v; unavailable: %v; allocations: %d\n", err, errors.Is(err, ucx.ErrUnavailable), ucx.Allocations())
	return nil
}

func openInChild(t *testing.T, order childOrder) string {
	t.Helper()
	space := newSlab(t, 1<<20)
	order.Open, order.SlabBytes = true, space.Size()
	text, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.ExtraFiles = []*os.File{space.file}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestUnusableLibrariesAreUnavailableAndSayWhy(t *testing.T) {
	whole, err := os.ReadFile(library(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	truncated := filepath.Join(dir, "libucp.so.0")
	if err := os.WriteFile(truncated, whole[:len(whole)/3], 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "none", "libucp.so.0")
	for name, c := range map[string]struct {
		order childOrder
		want  string
	}{
		"missing":                         {childOrder{Library: missing}, missing},
		"truncated":                       {childOrder{Library: truncated}, truncated},
		"another library":                 {childOrder{Library: "libm.so.6"}, "older than UCX 1.13"},
		"a transport that does not exist": {childOrder{Library: library(t), TLS: "teleport"}, "ucp_"},
		"no descriptors":                  {childOrder{Library: library(t), Files: 30}, "ulimit -n"},
	} {
		t.Run(name, func(t *testing.T) {
			out := openInChild(t, c.order)
			if !strings.Contains(out, "unavailable: true; allocations: 0") || !strings.Contains(out, c.want) {
				t.Errorf("%s", out)
			}
		})
	}
}

func TestHostMemoryNeedsNoLockedMemory(t *testing.T) {
	if out := openInChild(t, childOrder{Library: library(t), NoLockedMemory: true}); !strings.Contains(out, "opened: <nil>") {
		t.Error(out)
	}
}

func TestWithoutSharedMemoryThereIsAnotherTransportOrNone(t *testing.T) {
	t.Setenv("UCX_POSIX_DIR", filepath.Join(t.TempDir(), "none"))
	t.Setenv("UCX_LOG_LEVEL", "fatal")
	alone := startChild(t, childOrder{TLS: "posix,cma"}, newObjects(t))
	if _, err := newReader(t, "posix,cma", transfertest.Patience).path.Connect(t.Context(), alone.peer); !errors.Is(err, ucx.ErrNoConnection) {
		t.Errorf("got %v", err)
	}
	other := startChild(t, childOrder{TLS: "posix,cma,tcp"}, newObjects(t))
	if _, err := newReader(t, "posix,cma,tcp", transfertest.Patience).path.Connect(t.Context(), other.peer); err != nil {
		t.Error(err)
	}
}

func TestSignalsStayWithGo(t *testing.T) {
	newReader(t, transports["cma"], transfertest.Patience)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hangups:
	case <-time.After(transfertest.Patience):
		t.Error("SIGHUP was swallowed")
	}
	var nothing *int
	panicked := func() (v any) {
		defer func() { v = recover() }()
		return *nothing
	}()
	if err, ok := panicked.(error); !ok || !strings.Contains(err.Error(), "nil pointer") {
		t.Errorf("a nil dereference gave %v", panicked)
	}
}

func TestChildrenInheritNothingOfUCX(t *testing.T) {
	for name, tls := range transports {
		t.Run(name, func(t *testing.T) {
			objects := newObjects(t)
			c := startChild(t, childOrder{TLS: tls}, objects)
			r := newReader(t, tls, transfertest.Patience)
			if _, err := r.path.Connect(t.Context(), c.peer); err != nil {
				t.Fatal(err)
			}
			list := func() string {
				out, err := exec.Command("ls", "-l", "/proc/self/fd").Output()
				if err != nil {
					t.Fatal(err)
				}
				return string(out)
			}
			if before := list(); !strings.Contains(before, "socket:") && !strings.Contains(before, "anon_inode:") {
				t.Errorf("without help a child inherits nothing either, so this shows nothing:\n%s", before)
			}
			if err := descriptors.CloseOnExec(); err != nil {
				t.Fatal(err)
			}
			if after := list(); strings.Contains(after, "socket:") || strings.Contains(after, "anon_inode:") {
				t.Errorf("a child inherits\n%s", after)
			}
		})
	}
}

func TestStructuresAgreeWithTheHeaders(t *testing.T) {
	include := filepath.Join(filepath.Dir(library(t)), "..", "include")
	if _, err := os.Stat(filepath.Join(include, "ucp", "api", "ucp.h")); err != nil {
		t.Fatalf("%v: the headers come with the library", err)
	}
	source := filepath.Join(t.TempDir(), "abi.c")
	if err := os.WriteFile(source, []byte(abiChecks()), 0o600); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-fsyntax-only", "-I", include, "-I", here, source).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// abiChecks returns C code that compiles if and only if abi.h agrees with the headers of UCX.
func abiChecks() string {
	var b strings.Builder
	b.WriteString("#include <ucp/api/ucp.h>\n#include \"abi.h\"\n")
	for ours, theirs := range map[string]string{
		"MR_UCS_OK": "UCS_OK", "MR_UCS_INPROGRESS": "UCS_INPROGRESS", "MR_UCS_ERR_NO_MEMORY": "UCS_ERR_NO_MEMORY",
		"MR_UCS_ERR_BUSY": "UCS_ERR_BUSY", "MR_UCS_ERR_LAST": "UCS_ERR_LAST",
		"MR_PARAM_FEATURES": "UCP_PARAM_FIELD_FEATURES", "MR_FEATURE_RMA": "UCP_FEATURE_RMA", "MR_FEATURE_WAKEUP": "UCP_FEATURE_WAKEUP",
		"MR_FEATURE_AM":               "UCP_FEATURE_AM",
		"MR_WORKER_PARAM_THREAD_MODE": "UCP_WORKER_PARAM_FIELD_THREAD_MODE", "MR_THREAD_MODE_SERIALIZED": "UCS_THREAD_MODE_SERIALIZED",
		"MR_WORKER_ATTR_ADDRESS": "UCP_WORKER_ATTR_FIELD_ADDRESS",
		"MR_MAP_ADDRESS":         "UCP_MEM_MAP_PARAM_FIELD_ADDRESS", "MR_MAP_LENGTH": "UCP_MEM_MAP_PARAM_FIELD_LENGTH",
		"MR_MAP_MEMORY_TYPE": "UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE", "MR_EP_REMOTE_ADDRESS": "UCP_EP_PARAM_FIELD_REMOTE_ADDRESS",
		"MR_EP_ERR_MODE": "UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE", "MR_EP_ERR_HANDLER": "UCP_EP_PARAM_FIELD_ERR_HANDLER",
		"MR_ERR_MODE_PEER": "UCP_ERR_HANDLING_MODE_PEER", "MR_EP_ATTR_TRANSPORTS": "UCP_EP_ATTR_FIELD_TRANSPORTS",
		"MR_EP_CLOSE_FORCE": "UCP_EP_CLOSE_FLAG_FORCE", "MR_OP_CALLBACK": "UCP_OP_ATTR_FIELD_CALLBACK",
		"MR_OP_USER_DATA": "UCP_OP_ATTR_FIELD_USER_DATA", "MR_OP_FLAGS": "UCP_OP_ATTR_FIELD_FLAGS",
		"MR_OP_MEMORY_TYPE": "UCP_OP_ATTR_FIELD_MEMORY_TYPE", "MR_OP_MEMH": "UCP_OP_ATTR_FIELD_MEMH",
		"MR_AM_WHOLE_MESSAGE": "UCP_AM_FLAG_WHOLE_MSG", "MR_AM_HANDLER_ID": "UCP_AM_HANDLER_PARAM_FIELD_ID",
		"MR_AM_HANDLER_FLAGS": "UCP_AM_HANDLER_PARAM_FIELD_FLAGS", "MR_AM_HANDLER_CB": "UCP_AM_HANDLER_PARAM_FIELD_CB",
		"MR_AM_HANDLER_ARG": "UCP_AM_HANDLER_PARAM_FIELD_ARG", "MR_AM_SEND_EAGER": "UCP_AM_SEND_FLAG_EAGER",
		"MR_AM_RECV_DATA": "UCP_AM_RECV_ATTR_FLAG_DATA", "MR_AM_RECV_RNDV": "UCP_AM_RECV_ATTR_FLAG_RNDV",
		"MR_AM_SEND_RNDV": "UCP_AM_SEND_FLAG_RNDV", "MR_ATTR_MEMORY_TYPES": "UCP_ATTR_FIELD_MEMORY_TYPES",
		"MR_MEMORY_TYPE_CUDA": "UCS_MEMORY_TYPE_CUDA",
	} {
		fmt.Fprintf(&b, "_Static_assert((int)%s == (int)%s, \"%s\");\n", ours, theirs, ours)
	}
	for ours, fields := range map[string]string{
		"mr_params_t ucp_params_t":                     "field_mask features",
		"mr_context_attr_t ucp_context_attr_t":         "field_mask request_size thread_mode memory_types",
		"mr_worker_params_t ucp_worker_params_t":       "field_mask thread_mode",
		"mr_worker_attr_t ucp_worker_attr_t":           "field_mask thread_mode address_flags address address_length",
		"mr_mem_map_params_t ucp_mem_map_params_t":     "field_mask address length flags prot memory_type",
		"mr_ep_params_t ucp_ep_params_t":               "field_mask address err_mode err_cb=err_handler.cb err_arg=err_handler.arg",
		"mr_ep_attr_t ucp_ep_attr_t":                   "field_mask name entries=transports.entries num_entries=transports.num_entries entry_size=transports.entry_size",
		"mr_transport_entry_t ucp_transport_entry_t":   "transport_name device_name",
		"mr_request_param_t ucp_request_param_t":       "op_attr_mask flags request cb datatype user_data reply_buffer memory_type recv_info memh",
		"mr_am_recv_param_t ucp_am_recv_param_t":       "recv_attr reply_ep",
		"mr_am_handler_param_t ucp_am_handler_param_t": "field_mask id flags cb arg",
	} {
		types := strings.Fields(ours)
		for _, f := range strings.Fields(fields) {
			our, their, ok := strings.Cut(f, "=")
			if !ok {
				their = our
			}
			fmt.Fprintf(&b, "_Static_assert(offsetof(%s, %s) == offsetof(%s, %s) && sizeof(((%s *)0)->%s) == sizeof(((%s *)0)->%s), \"%s.%s\");\n",
				types[0], our, types[1], their, types[0], our, types[1], their, types[0], our)
		}
		if strings.HasPrefix(ours, "mr_am_recv") || strings.HasPrefix(ours, "mr_transport") {
			continue
		}
		fmt.Fprintf(&b, "_Static_assert(sizeof(%s) >= sizeof(%s), \"room in %s\");\n", types[0], types[1], types[0])
	}
	return b.String()
}

func TestAnotherVersionIsRefusedByBothSides(t *testing.T) {
	objects := newObjects(t)
	c := startChild(t, childOrder{TLS: transports["cma"], Lie: "version"}, objects)
	r := newReader(t, transports["cma"], transfertest.Patience)
	err := r.path.Fetch(t.Context(), c.peer, []transfer.Ref{{Task: 1}}, transfertest.NewSinkIn(r.room))
	if !errors.Is(err, ucx.ErrVersion) || !errors.Is(err, ucx.ErrNoConnection) || !strings.Contains(err.Error(), "1.18.0 there") {
		t.Errorf("reader: %v", err)
	}
	honest := startChild(t, childOrder{TLS: transports["cma"]}, newObjects(t))
	r.lie = func(e *endpoint) { e.Version = "1.20.0" }
	if _, err := r.path.Connect(t.Context(), honest.peer); !errors.Is(err, ucx.ErrNoConnection) || !strings.Contains(err.Error(), "1.20.0 there") {
		t.Errorf("source: %v", err)
	}
}

func TestMemoryThatIsNotAsDescribedIsRefused(t *testing.T) {
	for _, lie := range []string{"nonce", "incarnation", "uuid", "base"} {
		t.Run(lie, func(t *testing.T) {
			c := startChild(t, childOrder{TLS: transports["cma"], Lie: lie}, newObjects(t))
			r := newReader(t, transports["cma"], transfertest.Patience)
			if _, err := r.path.Connect(t.Context(), c.peer); !errors.Is(err, ucx.ErrProof) || !errors.Is(err, ucx.ErrNoConnection) {
				t.Errorf("%v", err)
			}
			if n := r.path.Connections(); n != 0 {
				t.Errorf("%d connections", n)
			}
		})
	}
}
