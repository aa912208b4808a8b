// Package version is an Adapter to the build: it knows which version of Millrace this binary is.
package version

import "runtime/debug"

// version is set by the linker (see the Makefile); empty in binaries built by go install or go test.
var version string

// String returns the version: what the linker was told, else the module version of go install, else "devel".
func String() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
