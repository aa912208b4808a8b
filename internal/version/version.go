// Package version is an Adapter to the build: it returns the version of Millrace of this binary.
package version

import "runtime/debug"

// version is set by the linker in a release (VERSION in the Makefile). It is empty in all other
// binaries, so that they change only with their code.
var version string

// String returns the version that the linker set, else the module version of go install, else
// "devel".
func String() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
