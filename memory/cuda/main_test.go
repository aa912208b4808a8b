//go:build cgo && linux

package cuda_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
)

const (
	// realEnv: use the machine's driver. Only the tests named TestGPU can do that.
	realEnv = "MILLRACE_CUDA_REAL"
	// ratesEnv is the path of a file to which measured rates are appended.
	ratesEnv = "MILLRACE_RATES"
	// childEnv: this process is a child. It serves orders instead of running tests.
	childEnv = "MILLRACE_TEST_CHILD"
)

const fakeMemory = 256 << 20

var (
	fake   *cudatest.Fake // nil on a real GPU
	driver *cuda.Driver
)

func TestMain(m *testing.M) {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(childEnv) != "" {
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	leak := goleak.Find()
	for limit := time.Now().Add(5 * time.Minute); code == 0 && leak != nil && time.Now().Before(limit); {
		leak = goleak.Find() // Find itself waits up to a second
	}
	if leak != nil && code == 0 {
		fmt.Fprintln(os.Stderr, leak)
		code = 1
	}
	if n := cuda.Allocations(); n != 0 && code == 0 {
		fmt.Fprintf(os.Stderr, "%d allocations of the shim are left\n", n)
		code = 1
	}
	if fake != nil {
		if left := fake.Left(); left != "" && code == 0 {
			fmt.Fprintln(os.Stderr, "left in the driver:", left)
			code = 1
		}
		if err := fake.Close(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func start() (err error) {
	library := os.Getenv(childEnv)
	switch {
	case os.Getenv(realEnv) != "":
		library = ""
	case library == "":
		if fake, err = cudatest.Start(2, fakeMemory); err != nil {
			return err
		}
		library = fake.Library
	}
	driver, err = cuda.Load(cuda.Config{Library: library})
	return err
}

var identity = memory.Identity{WorkerUUID: [16]byte{1, 2}, Incarnation: [16]byte{3}, Nonce: 1<<63 + 4}

// open opens a device. The device is closed after the test, when the objects of the test are
// closed.
func open(t *testing.T, ordinal int) *cuda.Device {
	t.Helper()
	if fake != nil {
		t.Cleanup(fake.Heal)
	}
	d, err := driver.Open(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func newSlab(t *testing.T, d *cuda.Device, bytes uint64) *cuda.Slab {
	t.Helper()
	s, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: bytes}, Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, s) })
	return s
}

func closing(t *testing.T, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// order is an order to a child process. "slab" makes a slab, "await" waits for room and makes one,
// "close" closes the slab and the device, "quit" ends the process.
type order struct {
	Do       string
	Device   int
	Size     cuda.Size
	Identity memory.Identity
	// Fill is written to all bytes except the header page.
	Fill byte
	// Throwaways, if not 0, is the number of small allocations before the slab.
	Throwaways int
}

// answer is the result of an order.
type answer struct {
	Error   string
	NoRoom  bool
	Export  cuda.Export
	Refused int
	// Again: the slab was refused, and the child tries again; another answer follows.
	Again bool
}

// serve carries out orders, one JSON value each, until the input ends.
func serve(in io.Reader, out io.Writer) error {
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return nil // the parent has exited or closed the pipe
		}
		if o.Do == "quit" {
			return nil
		}
		a, err := carryOut(o, answers)
		if err != nil {
			a.Error, a.NoRoom = err.Error(), errors.Is(err, cuda.ErrOutOfMemory)
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// The objects of a child process, kept until it ends.
var (
	childDevice *cuda.Device
	childSlab   *cuda.Slab
)

func carryOut(o order, answers *json.Encoder) (a answer, err error) {
	if childDevice == nil {
		if childDevice, err = driver.Open(o.Device); err != nil {
			return a, err
		}
	}
	d, config := childDevice, cuda.SlabConfig{Size: o.Size, Identity: o.Identity}.WithThrowaways(o.Throwaways)
	switch o.Do {
	case "close":
		return a, errors.Join(childSlab.Close(), childDevice.Close())
	case "await":
		childSlab, err = d.AwaitSlab(context.Background(), config, func(error) {
			if a.Refused++; a.Refused == 1 {
				_ = answers.Encode(answer{Again: true}) // if the parent has exited, the error does not matter
			}
		})
	case "slab":
		childSlab, err = d.NewSlab(config)
	}
	if err != nil {
		return a, err
	}
	if a.Export, err = childSlab.Export(); err != nil {
		return a, err
	}
	stream, n := d.Stream(cuda.Compute), childSlab.Size()-memory.HeaderBytes
	return a, errors.Join(stream.Memset(childSlab.Pointer(memory.HeaderBytes, n), o.Fill, n), stream.Sync())
}

// child is another process with the same driver.
type child struct {
	cmd     *exec.Cmd
	orders  *json.Encoder
	answers *json.Decoder
	in      io.Closer
}

func startChild(t *testing.T) *child {
	t.Helper()
	c, err := prepareChild()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

// startChildAgain starts a child that resembles an ended one: it has the same pid if that is
// possible, and addresses that are not random. ended may be nil.
func startChildAgain(t *testing.T, ended *child) (c *child, same bool) {
	t.Helper()
	pid := 0
	if ended != nil {
		pid = ended.cmd.Process.Pid
	}
	_, same, err := cudatest.StartAgain(pid, func() (*exec.Cmd, error) {
		var err error
		if c, err = prepareChild(); err != nil {
			return nil, err
		}
		return c.cmd, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c, same
}

func prepareChild() (*child, error) {
	cmd := exec.Command(os.Args[0])
	library := "real"
	if fake != nil {
		library = fake.Library
	}
	cmd.Env = append(os.Environ(), childEnv+"="+library)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &child{cmd: cmd, in: in, orders: json.NewEncoder(in), answers: json.NewDecoder(bufio.NewReader(out))}, nil
}

// kill ends the child at once. It returns when the system has released the child's resources.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended already
	_ = c.cmd.Wait()         // the error is the signal
}

func (c *child) tell(t *testing.T, o order) {
	t.Helper()
	if err := c.orders.Encode(o); err != nil {
		t.Fatal(err)
	}
}

func (c *child) hear(t *testing.T) (a answer) {
	t.Helper()
	if err := c.answers.Decode(&a); err != nil {
		t.Fatal(err)
	}
	return a
}

func (c *child) ask(t *testing.T, o order) answer {
	t.Helper()
	c.tell(t, o)
	a := c.hear(t)
	if a.Error != "" {
		t.Fatal(a.Error)
	}
	return a
}
