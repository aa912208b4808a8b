// Package invariant is an Interface: a compile-time constant says whether machines check their
// invariants after each step. A check examines the whole state, so only test builds (go test -tags
// invariants) make it. In all other builds the compiler removes the guarded code.
package invariant
