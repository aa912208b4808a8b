// Package version is an Adapter to the build: it returns the version of Millrace of this binary.
package version

import "runtime/debug"

// version is set by the linker (see the Makefile). It is empty in binaries that go install or go
// test built.
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
