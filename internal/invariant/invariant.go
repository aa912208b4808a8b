// Package invariant is an Interface: it tells at compile time whether machines
// check their invariants after each step. The checks cost as much as the whole
// state is large, so that only test builds (go test -tags invariants) pay them;
// in all others the compiler removes the guarded code.
package invariant
