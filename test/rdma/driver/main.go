// Command driver is Test support: it compiles the fake CUDA driver into the folder that is its
// argument, and prints the path of the library.
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/millrace/millrace/memory/cuda/cudatest"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: driver FOLDER")
	}
	library, err := cudatest.Build(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(library)
}
