package worker

import (
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/ops"
	"github.com/millrace/millrace/worker/ops/lapack"
)

// pureGo is the description of linear algebra without a library.
const pureGo = "pure Go"

// linalg returns the finder of the library for linear algebra.
func (c Config) linalg() lapack.Finder {
	f := lapack.Finder{Library: c.BLASLibrary}
	if len(c.PythonCommand) > 0 {
		f.Python = c.PythonCommand[0]
	}
	return f
}

// linearAlgebra describes how native operations compute linear algebra, after the search for the
// library has ended. A library that was asked for by name must be there; otherwise pure Go does.
func (c Config) linearAlgebra(m *opened) (*millracev1.LinearAlgebra, error) {
	described := &millracev1.LinearAlgebra{Library: pureGo, Cores: uint32(c.Cores)}
	if c.Device == DeviceHost {
		described.Ops = ops.NewRegistry().Linalg()
	}
	library, err := m.linalg.Library()
	switch {
	case err != nil && c.BLASLibrary != "":
		return nil, &ConfigError{err}
	case err != nil:
		c.Log.Warn("linear algebra on the CPU is computed in pure Go, which is many times slower", "error", err)
	case library != nil:
		described.Library, described.File = library.String(), library.File
		c.Log.Info("linear algebra on the CPU", "library", described.Library, "file", described.File)
	}
	return described, nil
}
