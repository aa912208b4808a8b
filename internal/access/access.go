// Package access is an Interface: it says which calls a token allows.
//
// Each token gives one role. Table lists every call of every service, with the roles that may make
// it. The servers of the scheduler and of the workers refuse a call that is not in it.
package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
)

// Role is the set of rights that a token gives.
type Role string

// The roles. docs/security.md describes them.
const (
	// Operator has the cluster's own token. It may make all calls but those between workers, and
	// act in the name of every client.
	Operator Role = "operator"
	// Client may submit work, use what clients share, and run functions in all executors.
	Client Role = "client"
	// Task is the role of the clients that tasks open. It may do what a Client may, except to run
	// functions in executors outside of tasks, now or later.
	Task Role = "task"
	// Worker may make the calls of workers and their supervisors, and read objects.
	Worker Role = "worker"
	// Reader may only read. Its calls do not wait and have no client.
	Reader Role = "read-only"
)

// Roles lists all roles.
func Roles() []Role { return []Role{Operator, Client, Task, Worker, Reader} }

// Identity says who makes a call: the role of the token, and a name of the token that does not
// reveal it.
type Identity struct {
	Role  Role
	Token string
}

// Nobody is the identity of all callers of a server without tokens. Nothing is refused to it.
var Nobody = Identity{Role: Operator}

type callerKey struct{}

// With returns the context of the handler of a call.
func With(ctx context.Context, caller Identity) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// Caller returns the identity of the caller in the context of a handler.
func Caller(ctx context.Context) Identity {
	if caller, ok := ctx.Value(callerKey{}).(Identity); ok {
		return caller
	}
	return Nobody
}

// Owns reports whether a caller may act in the name of a client that owner has opened.
func (i Identity) Owns(owner string) bool { return i.Role == Operator || i.Token == owner }

// Token is an accepted token, given as its SHA-256 sum, so that its holder need not know it.
type Token struct {
	Sum  [sha256.Size]byte `json:"sum"`
	Role Role              `json:"role"`
}

// TokenOf returns a token with its role.
func TokenOf(token string, role Role) Token { return Token{sha256.Sum256([]byte(token)), role} }

// Tokens are the tokens that a server accepts. Without any, it accepts every call.
type Tokens []Token

// Find returns the identity of a token. It takes the same time whichever token matches.
func (t Tokens) Find(shown string) (found Identity, known bool) {
	given := sha256.Sum256([]byte(shown))
	for i := range t {
		if subtle.ConstantTimeCompare(t[i].Sum[:], given[:]) == 1 {
			found, known = Identity{t[i].Role, hex.EncodeToString(given[:8])}, true
		}
	}
	return found, known
}

// Allows reports whether a token may be used for a call. Without tokens, every call is allowed.
func (t Tokens) Allows(shown, method string) bool {
	if len(t) == 0 {
		return true
	}
	identity, known := t.Find(shown)
	return known && Allowed(identity.Role, method)
}
