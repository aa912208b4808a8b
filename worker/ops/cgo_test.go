//go:build cgo && linux

package ops

// cgo: the program can load libraries.
const cgo = true
