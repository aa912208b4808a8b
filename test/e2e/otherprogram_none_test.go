//go:build !cgo || !linux

package e2e

// otherProgram fails, because there are no GPUs without cgo.
func otherProgram(string) int { return 1 }
