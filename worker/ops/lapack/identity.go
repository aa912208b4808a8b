package lapack

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/millrace/millrace/internal/sharedlib"
)

// measureIntegers finds out whether the library's integers have 64 bits. ILAVER assigns the version
// of LAPACK to three of them: integers of 32 bits leave the upper half of each argument as it was.
func (l *Library) measureIntegers() {
	l.wide = strings.HasSuffix(l.after, "64_")
	address := l.lib.Symbol(l.symbol("ilaver"))
	if address == 0 {
		return
	}
	var version sharedlib.Fortran
	for range 3 {
		version.Value(^uint64(0))
	}
	version.Call(address)
	l.wide = version.Bits(0)>>32 == 0
	l.version = fmt.Sprintf("%d.%d", version.Int(0), version.Int(1))
}

// String describes the library for people: "OpenBLAS 0.3.31.188.0 SkylakeX, ILP64". The word after
// the version is the kind of processor that its kernels are for.
func (l *Library) String() string {
	name := strings.TrimSpace("LAPACK " + l.version)
	if maker := l.maker(); maker != "" {
		name = maker + ", " + name
	}
	if config := strings.Fields(l.openBLAS("get_config")); len(config) > 1 {
		// "OpenBLAS 0.3.31.188.0 USE64BITINT DYNAMIC_ARCH ..."
		name = strings.Join(append(config[:2:2], strings.Fields(l.openBLAS("get_corename"))...), " ")
	} else if l.lib.Symbol(mklVersion) != 0 {
		name = strings.TrimSpace("MKL " + l.mklVersion())
	}
	if l.wide {
		return name + ", ILP64"
	}
	return name + ", LP64"
}

// makers are libraries of BLAS by a function that only they have. Their kernels are for the
// processors of the last decades.
var makers = []struct{ name, function string }{
	{"MKL", mklVersion}, {"BLIS", "bli_info_get_version_str"}, {"ATLAS", "ATL_dgemm"}, {"FlexiBLAS", "flexiblas_avail"}, {"Arm Performance Libraries", "armplversion_"},
}

// maker returns the name of the library of BLAS, or "" if it is not known. It may be the reference
// library then.
func (l *Library) maker() string {
	if openBLASFunction(l.lib, "get_config") != "" {
		return "OpenBLAS"
	}
	for _, m := range makers {
		if l.lib.Symbol(m.function) != 0 {
			return m.name
		}
	}
	return ""
}

// openBLASFunction returns the name of a function of OpenBLAS that is not part of BLAS, or "" if
// the library has none: it is another library then.
func openBLASFunction(lib *sharedlib.Library, name string) string {
	for _, spelling := range []string{"scipy_openblas_%s64_", "openblas_%s64_", "scipy_openblas_%s", "openblas_%s"} {
		if function := fmt.Sprintf(spelling, name); lib.Symbol(function) != 0 {
			return function
		}
	}
	return ""
}

func (l *Library) openBLAS(name string) string {
	if function := openBLASFunction(l.lib, name); function != "" {
		return l.lib.Text(function)
	}
	return ""
}

const mklVersion = "MKL_Get_Version_String"

// mklVersion returns MKL's version, such as "2025.0.3".
func (l *Library) mklVersion() string {
	var pin runtime.Pinner
	defer pin.Unpin()
	text := make([]byte, 200)
	if _, err := l.lib.Call(mklVersion, sharedlib.AddressOf(&pin, &text[0]), uint64(len(text))); err != nil {
		return ""
	}
	// "Intel(R) oneAPI Math Kernel Library Version 2025.0.3-Product Build 20251007 for ..."
	_, version, _ := strings.Cut(string(text), " Version ")
	version, _, _ = strings.Cut(version, "-")
	return version
}
