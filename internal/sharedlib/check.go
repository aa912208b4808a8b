package sharedlib

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Check checks that a file is a complete library, without loading it: the dynamic linker dies by
// SIGBUS on a truncated file.
func Check(path string) error {
	f, err := elf.Open(path)
	var missing *fs.PathError
	switch {
	case errors.As(err, &missing):
		return missing.Err
	case err != nil:
		return fmt.Errorf("it is not a library, or was cut short: %w", err)
	}
	defer f.Close()
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Off+p.Filesz < p.Off || p.Off+p.Filesz > uint64(info.Size()) {
			return fmt.Errorf("the file has %d bytes and should have at least %d: it was cut short", info.Size(), p.Off+p.Filesz)
		}
	}
	return nil
}
