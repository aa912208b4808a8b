package transfer

// Lane describes how the bytes of a connected peer travel, for a path that has several ways. The
// zero value: the peer is not connected.
type Lane struct {
	// Transport is the mechanism that carries the bytes, such as "rc_mlx5"; for people.
	Transport string
	// Staged names the ends at which the bytes go through pinned host memory, because they cannot
	// go straight from slab to slab there: "", "source", "reader" or "both".
	Staged string
	// BytesPerSecond is the rate of a read that was timed when the peer was connected. 0: none was.
	BytesPerSecond float64
	// Why is the reason why the connection is not a better one; for people. Empty: it is the best.
	Why string
}
