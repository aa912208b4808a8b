//go:build !cgo || !linux

package e2e

// otherProgram: there are no GPUs.
func otherProgram(string) int { return 1 }
