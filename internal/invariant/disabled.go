//go:build !invariants

package invariant

// Enabled is true in builds with the tag "invariants".
const Enabled = false
