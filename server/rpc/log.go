package rpc

import (
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc/codes"
)

// callLevel is the level at which the end of a call is logged: faults of the scheduler are errors,
// missing rights and exhausted resources are warnings, and other faults of clients are debug
// messages.
func callLevel(code codes.Code) logging.Level {
	switch code {
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.Unimplemented:
		return logging.LevelError
	case codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted:
		return logging.LevelWarn
	default:
		return logging.LevelDebug
	}
}
