// Package purity is Test support: it asserts rules that linters cannot check, over the syntax of
// the whole module: machines are pure, packages import only what their kind allows, and each
// package names its kind. Its code is in its tests only.
package purity
