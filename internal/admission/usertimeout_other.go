//go:build !linux

package admission

import "net"

// boundUnacknowledged does nothing: only Linux has the option.
func boundUnacknowledged(net.Conn) {}
