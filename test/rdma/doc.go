// Package rdma is Test support: what `make rdma` runs on two hosts with RDMA devices. Its tests
// have the tag rdma, because they run only inside the nodes that this command boots.
package rdma
