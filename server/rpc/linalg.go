package rpc

import (
	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/sched"
)

func linalgTo(l sched.Linalg) *pb.LinearAlgebra {
	if l.Library == "" {
		return nil
	}
	return &pb.LinearAlgebra{Library: l.Library, File: l.File, Cores: l.Cores, Ops: l.Ops}
}

func linalgFrom(l *pb.LinearAlgebra) sched.Linalg {
	return sched.Linalg{Library: l.GetLibrary(), File: l.GetFile(), Cores: l.GetCores(), Ops: l.GetOps()}
}
