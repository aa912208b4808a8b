package cuda

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/sharedlib"
)

// errNoLibrary says that one of NVIDIA's libraries was not found.
var errNoLibrary = errors.New("not found")

// library is one of NVIDIA's libraries. Its functions return a status, which is an int.
type library struct {
	*sharedlib.Library
	file string
}

// call calls a function and returns the library's own status. See sharedlib.Library.Call.
func (l *library) call(function string, arguments ...uint64) (int32, error) {
	status, err := l.Call(function, arguments...)
	return int32(status), err
}

// mustCall is call; a status that is not 0 is an error, too.
func (l *library) mustCall(function string, arguments ...uint64) error {
	status, err := l.call(function, arguments...)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s answers %d", function, status)
	}
	return err
}
