package nvml

import "fmt"

// Codes and values that only tests name.
const (
	notFound           code = 6
	gpuIsLost          code = 15
	libVersionMismatch code = 18
	unknownError       code = 999

	kindSwitch, kindUnknown = 2, 255
)

// fakeSystem is a machine without hardware. Tests can replace the results of its functions.
type fakeSystem struct {
	cards    []*fakeCard
	initCode code
	// handle and counted replace the machine's results.
	handle  func(int) (card, code)
	counted code
	set     events
	noSet   bool
}

func (s *fakeSystem) init() code                     { return s.initCode }
func (s *fakeSystem) shutdown() code                 { return success }
func (s *fakeSystem) text(c code) string             { return fmt.Sprintf("code %d", int(c)) }
func (s *fakeSystem) driverVersion() (string, code)  { return "550.54.15", success }
func (s *fakeSystem) cudaDriverVersion() (int, code) { return 12040, success }
func (s *fakeSystem) count() (int, code)             { return len(s.cards), s.counted }

func (s *fakeSystem) byIndex(i int) (card, code) {
	if s.handle != nil {
		return s.handle(i)
	}
	return s.cards[i], success
}

func (s *fakeSystem) byUUID(uuid string) (card, code) {
	for _, g := range s.cards {
		if g.id == uuid {
			return g, success
		}
	}
	return nil, notFound
}

func (s *fakeSystem) newEvents() (events, code) {
	if s.noSet {
		return nil, notSupported
	}
	return s.set, success
}

// fakeCard is a GPU of a DGX A100; its fields can change that. If a function is nil, the driver
// lacks it.
type fakeCard struct {
	id, model, bus   string
	idCode, nameCode code
	total, used      uint64
	mig              bool
	parts            []*fakeCard // nil for a possible MIG instance that does not exist
	gi, ci           int
	cpus             []uint64
	link             func(int) (bool, code)
	linkKind         func(int) (int, code)
	linkTo           func(int) (string, code)
	p2p              func(*fakeCard, int) (int, code)
	busy             [2]int
	slow             uint64
	slowCode         code
	watts            int
	clocks, ecc      bool
	list             []process
	kinds            func() (uint64, code)
	counts           func(field) value // nil: the driver has no such fields
}

func (g *fakeCard) uuid() (string, code)     { return g.id, g.idCode }
func (g *fakeCard) name() (string, code)     { return g.model, g.nameCode }
func (g *fakeCard) pciBusID() (string, code) { return g.bus, success }
func (g *fakeCard) memory() (used, total uint64, c code) {
	return g.used, g.total, success
}
func (g *fakeCard) computeCapability() (major, minor int, c code) { return 8, 0, success }
func (g *fakeCard) migMode() (bool, code)                         { return g.mig, success }
func (g *fakeCard) maxMigDevices() (int, code)                    { return len(g.parts), success }
func (g *fakeCard) migDevice(i int) (card, code) {
	if g.parts[i] == nil {
		return nil, notFound
	}
	return g.parts[i], success
}
func (g *fakeCard) gpuInstance() (int, code)         { return g.gi, success }
func (g *fakeCard) computeInstance() (int, code)     { return g.ci, success }
func (g *fakeCard) nearCPUs() ([]uint64, code)       { return g.cpus, success }
func (g *fakeCard) nvLinkEnabled(l int) (bool, code) { return g.link(l) }
func (g *fakeCard) nvLinkRemoteKind(l int) (int, code) {
	return g.linkKind(l)
}
func (g *fakeCard) nvLinkRemoteBusID(l int) (string, code) { return g.linkTo(l) }
func (g *fakeCard) p2pStatus(other card, caps int) (int, code) {
	return g.p2p(other.(*fakeCard), caps)
}
func (g *fakeCard) utilization() (gpu, memory int, c code) { return g.busy[0], g.busy[1], success }
func (g *fakeCard) clockMHz(kind int) (int, code) {
	if !g.clocks {
		return 0, notSupported
	}
	return 1000 + kind, success
}
func (g *fakeCard) throttleReasons() (uint64, code) { return g.slow, g.slowCode }
func (g *fakeCard) milliwatts() (int, code)         { return g.watts, success }
func (g *fakeCard) celsius() (int, code)            { return 0, notSupported }
func (g *fakeCard) eccErrors(kind int) (uint64, code) {
	if !g.ecc {
		return 0, notSupported
	}
	return uint64(7 + kind), success
}
func (g *fakeCard) processes() ([]process, code) { return g.list, success }
func (g *fakeCard) eventTypes() (uint64, code)   { return g.kinds() }
func (g *fakeCard) fields(list []field) ([]value, code) {
	if g.counts == nil {
		return nil, notSupported
	}
	var out []value
	for _, f := range list {
		out = append(out, g.counts(f))
	}
	return out, success
}

// fakeEvents returns the events of a script, then calls end.
type fakeEvents struct {
	script            []told
	end               func()
	registered, freed int
}

type told struct {
	event event
	code  code
}

func (e *fakeEvents) register(_ card, kinds uint64) code {
	if kinds != eventXid|eventDoubleBitECC {
		return invalidArgument
	}
	e.registered++
	return success
}

func (e *fakeEvents) wait(int) (event, code) {
	if len(e.script) == 0 {
		e.end()
		return event{}, timedOut
	}
	next := e.script[0]
	e.script = e.script[1:]
	return next.event, next.code
}

func (e *fakeEvents) free() { e.freed++ }
