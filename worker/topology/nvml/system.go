package nvml

// system is the library or a substitute for it in tests. The names of its methods are like those of
// NVML.
type system interface {
	init() code
	shutdown() code
	// text returns NVML's text for a code.
	text(code) string
	driverVersion() (string, code)
	cudaDriverVersion() (int, code)
	count() (int, code)
	byIndex(int) (card, code)
	byUUID(string) (card, code)
	newEvents() (events, code)
}

// card is a GPU or a MIG instance.
type card interface {
	uuid() (string, code)
	name() (string, code)
	pciBusID() (string, code)
	memory() (used, total uint64, c code)
	computeCapability() (major, minor int, c code)
	migMode() (enabled bool, c code)
	maxMigDevices() (int, code)
	migDevice(int) (card, code)
	gpuInstance() (int, code)
	computeInstance() (int, code)
	// nearCPUs returns a bit mask.
	nearCPUs() ([]uint64, code)
	nvLinkEnabled(link int) (bool, code)
	nvLinkRemoteKind(link int) (int, code)
	nvLinkRemoteBusID(link int) (string, code)
	p2pStatus(other card, caps int) (int, code)
	utilization() (gpu, memory int, c code)
	clockMHz(kind int) (int, code)
	throttleReasons() (uint64, code)
	milliwatts() (int, code)
	celsius() (int, code)
	eccErrors(kind int) (uint64, code)
	processes() ([]process, code)
	eventTypes() (uint64, code)
	// fields reads values by their numbers, in the same order. Each value has a code of its own.
	fields([]field) ([]value, code)
}

// events is an event set.
type events interface {
	register(of card, kinds uint64) code
	// wait returns the next event. If the event does not belong to a card, its card is nil or has
	// no UUID.
	wait(millis int) (event, code)
	free()
}

type process struct {
	pid  int
	used uint64
}

// field names a value. The scope is the number of a link, or allLinks.
type field struct {
	id, scope uint32
}

// value is the value of a field at a time in microseconds.
type value struct {
	number uint64
	// narrow: the number has 32 bits.
	narrow bool
	micros int64
	code   code
}

type event struct {
	of         card
	kind, data uint64
	// instance is the GPU instance of a card with MIG; negative if the event concerns the whole
	// card.
	instance int
}

// code is an nvmlReturn_t.
type code int

// Codes and values of NVML's ABI.
const (
	success         code = 0
	invalidArgument code = 2
	notSupported    code = 3
	timedOut        code = 10

	kindGPU = 0

	maxNVLinks = 36

	p2pOK, p2pChipset, p2pGPU, p2pTopology, p2pRegistry, p2pNotSupported = 0, 1, 2, 3, 4, 5

	capsRead, capsNVLink = 0, 2

	clockSM, clockMemory = 1, 2

	eccCorrected, eccUncorrected = 0, 1

	eventDoubleBitECC, eventXid = 2, 8

	slowPowerCap, slowHardware, slowThermal, slowHardwareThermal, slowPowerBrake = 0x4, 0x8, 0x20, 0x40, 0x80

	// The counters of NVLink are in KiB and have 64 bits, those of PCIe are in bytes and have 32.
	fieldNVLinkSent, fieldNVLinkReceived = 138, 139
	fieldPCIeSent, fieldPCIeReceived     = 197, 198

	allLinks = ^uint32(0)

	// notReported is the memory size of a process if the driver does not report it.
	notReported = ^uint64(0)
)
