package front

// GPU is what a worker's memory lies on; without a UUID if that is not a GPU.
type GPU struct {
	UUID, Name, PCIBusID string
	MemoryBytes          uint64
	// Node is the memory node near it, -1 if there is none.
	Node int32
	// Placement says which processors and memory its worker was given; NetDevices is
	// the RDMA port.
	Placement, NetDevices string
	Links                 []GPULink
}

// GPULink is how a GPU reaches another one of its host.
type GPULink struct {
	UUID       string
	NVLinks    uint32
	PeerAccess bool
	Why        string
}

// GPUHealth is the state of a GPU at one time; what the driver does not tell is 0.
type GPUHealth struct {
	UsedBytes                         uint64
	UtilizationPercent, MemoryPercent uint32
	ClockMHz, Celsius                 uint32
	Throttled                         []string
	Watts                             float64
	CorrectedECC, UncorrectedECC      uint64
	XIDs                              uint64
	LastEvent                         string
	ForeignProcesses                  uint32
	ForeignBytes                      uint64
}
