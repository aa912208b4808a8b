// Package bench is an Adapter: what `millrace bench` measures. Each benchmark starts a cluster of its own, of real processes
// of this program, drives it with the Go client, and reads CPU time and memory of the processes from /proc.
//
// Every benchmark warms up, repeats, and reports the median with the lowest and the highest; the client's own work counts.
// The fields of the results are a contract: fields may be added, never renamed.
package bench
