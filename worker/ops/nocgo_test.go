//go:build !cgo || !linux

package ops

const cgo = false
