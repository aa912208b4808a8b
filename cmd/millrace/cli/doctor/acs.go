package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Access Control Services (ACS) of PCI Express, as in the configuration space of a bridge.
const (
	// extendedAt is the beginning of the extended capabilities. Without privileges, sysfs shows
	// only the 64 bytes before the capabilities.
	extendedAt    = 0x100
	configBytes   = 4096
	acsCapability = 0x000d
	// acsControlAt is the place of ACSCtl in the capability.
	acsControlAt = 6
	// acsRedirects are the bits for requests and for completions. A bridge that redirects sends
	// traffic between two devices below it up to the root complex.
	acsRedirects = 1<<2 | 1<<3
)

// errConfigHidden says that sysfs does not show the configuration space to this process.
var errConfigHidden = errors.New("sysfs shows the first 64 bytes of its configuration, and the rest to root only")

// redirects reports whether a PCI bridge sends the traffic between devices below it up to the root
// complex.
func redirects(sysfs, bridge string) (bool, error) {
	config, err := os.ReadFile(filepath.Join(sysfs, "bus/pci/devices", bridge, "config"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("sysfs has no configuration of %s", bridge)
	case err != nil:
		return false, err
	case len(config) <= extendedAt:
		return false, fmt.Errorf("%s: %w", bridge, errConfigHidden)
	}
	// Each capability has its number in 16 bits, a version in 4, and the place of the next one in
	// 12. The count limits lists that have a cycle.
	at := extendedAt
	for range configBytes / 8 {
		if at < extendedAt || at+8 > len(config) {
			return false, nil
		}
		head := binary.LittleEndian.Uint32(config[at:])
		if head&0xffff == acsCapability {
			return binary.LittleEndian.Uint16(config[at+acsControlAt:])&acsRedirects != 0, nil
		}
		at = int(head >> 20)
	}
	return false, nil
}
