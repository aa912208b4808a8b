// Package roletoken is an Interface: it derives the tokens of roles from a cluster's token.
//
// A cluster has one token, the operator's, which allows everything. Three other tokens are derived
// from it by HMAC. So the scheduler, the supervisors of workers and the operator's tools can
// compute the derived tokens, but the operator's token cannot be computed from them. A task runs as
// the same user as its worker and can read the worker's memory. So a worker has only its derived
// token, which does not allow it to stop the cluster.
package roletoken

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// Worker returns the token of workers; "" if the cluster has none.
func Worker(token string) string { return derived(token, "millrace: workers") }

// Task returns the token of clients that tasks open; "" if the cluster has none.
func Task(token string) string { return derived(token, "millrace: clients inside of tasks") }

// Reader returns the token of those who only look; "" if the cluster has none.
func Reader(token string) string { return derived(token, "millrace: readers") }

// Peer returns the secret of the schedulers of a cluster that has several; "" if the cluster has
// no token.
func Peer(token string) string { return derived(token, "millrace: schedulers") }

func derived(token, role string) string {
	if token == "" {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte(role))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}
