// Command agent is Test support: it runs on a host of a test and starts processes there. Its
// argument is the address to listen at. If the environment names a fake CUDA driver, these
// processes have one fake GPU.
package main

import (
	"log"
	"net"
	"os"

	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/test/rdma/remote"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: agent ADDRESS")
	}
	log.Fatal(serve(os.Args[1]))
}

func serve(address string) error {
	if os.Getenv(cudatest.LibraryEnvironment) != "" {
		if _, err := cudatest.Start(1, 1<<42); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return remote.Serve(listener)
}
