// Command agent is Test support: it runs on a host of a test and starts processes there. Its
// argument is the address to listen at.
package main

import (
	"log"
	"net"
	"os"

	"github.com/millrace/millrace/test/rdma/remote"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: agent ADDRESS")
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err == nil {
		err = remote.Serve(listener)
	}
	log.Fatal(err)
}
