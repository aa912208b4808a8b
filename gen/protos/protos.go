// Package protos holds the public .proto files: those of the packages that clients and executors
// speak. They import nothing but each other and the well-known types of protobuf, because the
// validation rules are left out; the server checks requests in any case.
//
// `make gen` writes the folder millrace from proto/. This file is written by hand.
package protos

import "embed"

// Files has each file under the name by which the others import it.
//
//go:embed millrace
var Files embed.FS
