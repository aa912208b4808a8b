package cuda

// Found is a library of NVIDIA's that workers use where they find it.
type Found struct {
	// Name is as in libNAME.so; For says what needs it.
	Name, For string
	// File is what was loaded; Err why nothing was.
	File string
	Err  error
}

// FindLibraries looks for them as a worker does: where given says, in the packages of
// a Python, in the toolkit's folder, where the dynamic linker looks. It needs no GPU.
func FindLibraries(python string, given ...string) []Found {
	f := &finder{given: given, python: python}
	list := []Found{
		{Name: "nvrtc", For: "array.map, array.cast, array.reduce and cuda.kernel"},
		{Name: "cublas", For: "array.matmul"},
		{Name: "cusolver", For: "array.qr and array.svd"},
	}
	symbols := []string{"nvrtcCompileProgram", "cublasCreate_v2", "cusolverDnCreate"}
	versions := [][]string{{"13", "12"}, {"13", "12"}, {"12", "11"}}
	for i := range list {
		l, err := f.open(list[i].Name, symbols[i], versions[i]...)
		if list[i].Err = err; err == nil {
			list[i].File = l.file
		}
	}
	return list
}
