// Package bench is an Adapter: the measurements of `millrace bench`. Each benchmark starts a
// cluster of its own, of real processes of this program, drives it with the Go client, and reads
// the CPU time and memory of the processes from /proc.
//
// Every benchmark warms up, repeats, and reports the median with the lowest and the highest value;
// the client's own work counts. The fields of the results are a contract: fields may be added, but
// never renamed.
package bench
