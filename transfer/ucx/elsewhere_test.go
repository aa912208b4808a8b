//go:build cgo && linux

package ucx_test

import (
	"cmp"
	"encoding/json"
	"net"
	"net/rpc"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/test/rdma/remote"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
)

// The environment of tests between two hosts with RDMA devices; `make rdma` sets it.
const (
	// agentEnv is the address of an agent on another host. That host serves, and this one reads.
	agentEnv = "MILLRACE_TEST_AGENT"
	// hereEnv is the address of this host, as the other host sees it.
	hereEnv = "MILLRACE_TEST_HERE"
	// devicesEnv are the network devices; empty: the loopback device.
	devicesEnv = "MILLRACE_TEST_DEVICES"
)

// elsewhere starts children on another host; nil: children run on this host.
var elsewhere *remote.Host

func netDevices() string { return cmp.Or(os.Getenv(devicesEnv), "lo") }

// joinAgent makes tests use another host, if there is one.
func joinAgent() error {
	address := os.Getenv(agentEnv)
	if address == "" {
		return nil
	}
	var err error
	elsewhere, err = remote.Dial(address, time.Minute)
	// Two readers and two sources exist at the same time, on hosts with 2 GiB each, which take long
	// to register memory.
	slabBytes = 96 << 20
	transports = map[string]string{"rc_verbs": "rc,self"}
	if onRealGPU() {
		transports = map[string]string{"rc": "rc,self,cuda_copy"} // cuda_copy lets UCX know the memory of GPUs
	}
	return err
}

// startElsewhere is startChild on another host.
func startElsewhere(tb testing.TB, order childOrder, objects *transfertest.Objects) *child {
	tb.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(os.Getenv(hereEnv), "0"))
	if err != nil {
		tb.Fatal(err)
	}
	server := rpc.NewServer()
	if err := server.Register(&Source{objects}); err != nil {
		tb.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if conn, err := listener.Accept(); err == nil {
			server.ServeConn(conn)
		}
	}()
	host, _, err := net.SplitHostPort(os.Getenv(agentEnv))
	if err != nil {
		tb.Fatal(err)
	}
	order.Test = listener.Addr().String()
	order.Listen = cmp.Or(order.Listen, net.JoinHostPort(host, "0"))
	text, err := json.Marshal(order)
	if err != nil {
		tb.Fatal(err)
	}
	env := []string{childEnv + "=" + string(text), devicesEnv + "=" + netDevices(), "MILLRACE_UCX_LIBRARY=" + library(tb)}
	p, err := elsewhere.Start(remote.Order{Args: []string{os.Args[0]}, Env: env, WaitForLine: true})
	if err != nil {
		tb.Fatal(err)
	}
	var ended sync.Once
	end := func(hard bool) {
		ended.Do(func() {
			var err error
			if hard {
				err = p.Signal(syscall.SIGKILL)
			} else {
				err = p.Stop()
			}
			_ = listener.Close() // if the child never connected, the wait ends now
			<-served
			if err != nil {
				tb.Errorf("child: %v", err)
			}
		})
	}
	tb.Cleanup(func() { end(false) })
	return &child{peer: transfer.Peer{Worker: 1, Name: "peer", Address: strings.TrimSpace(p.Line)}, kill: func() { end(true) }}
}
