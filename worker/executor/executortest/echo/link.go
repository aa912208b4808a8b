package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// link is the socket. Only one goroutine reads it.
type link struct {
	*os.File
	// descriptors are the file descriptors that were received and not used yet, in order.
	descriptors []int
}

// Read keeps the file descriptors that come with the bytes.
func (l *link) Read(p []byte) (int, error) {
	control := make([]byte, unix.CmsgSpace(253*4))
	for {
		n, c, _, _, err := unix.Recvmsg(int(l.Fd()), p, control, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		messages, err := unix.ParseSocketControlMessage(control[:c])
		if err != nil {
			return 0, err
		}
		for i := range messages {
			fds, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				return 0, err
			}
			l.descriptors = append(l.descriptors, fds...)
		}
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
}

// segment maps the next descriptor. It ends the process if the segment can be mapped for writing.
func (l *link) segment(size int) []byte {
	fd := l.descriptors[0]
	l.descriptors = l.descriptors[1:]
	defer unix.Close(fd)
	if _, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EACCES) {
		fmt.Fprintln(os.Stderr, "echo: a segment can be mapped for writing:", err)
		os.Exit(8)
	}
	data, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		fmt.Fprintln(os.Stderr, "echo: a segment cannot be mapped:", err)
		os.Exit(8)
	}
	return data
}
