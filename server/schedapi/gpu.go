package schedapi

// GPU describes the GPU whose memory a worker manages. The UUID is empty if the worker has no GPU.
type GPU struct {
	UUID, Name, PCIBusID string
	MemoryBytes          uint64
	// Node is the NUMA node near the GPU, -1 if there is none.
	Node int32
	// Placement describes the processors and memory that the worker was given. NetDevices is the
	// RDMA port.
	Placement, NetDevices string
	Links                 []GPULink
}

// GPULink describes how a GPU reaches another GPU of its host.
type GPULink struct {
	UUID       string
	NVLinks    uint32
	PeerAccess bool
	Why        string
}

// GPUHealth is the state of a GPU at one time. Values that the driver does not report are 0.
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
	// The bytes of all its NVLinks since the driver was loaded, and its rates over PCIe in bytes
	// per second. Nil: the driver does not report them.
	NVLinkReceivedBytes, NVLinkSentBytes *uint64
	PCIeReceivedRate, PCIeSentRate       *float64
}
