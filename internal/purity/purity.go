// Package purity is Test support: it asserts, over the syntax of the whole
// module, what linters cannot see: that machines are pure, that packages import
// only what their kind may, and that each says its kind. It has no code outside
// of its tests.
package purity
