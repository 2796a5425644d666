package core

import (
	"context"
	"time"
)

// Backend is where leases live: Redis masters ([Clients], [Pools]), an SQL table, memory.
// A key is free, held or sealed; every method is one atomic step on one key and never waits for a holder.
//
// Implementations are safe for concurrent use and bound every call themselves: a method returns soon after ctx's
// deadline, and after a time-out of its own where ctx has none, or was cancelled in the middle. A change whose outcome is unknown is an
// [*UnavailableError], never a success; where ctx ended it, it matches ctx's error too, and the Locker tells its caller only of that.
// testutil.TestBackend is the conformance suite they all pass.
type Backend interface {
	// Acquire makes one attempt to hold key for ttl in the name of owner, a text that is used for this attempt only.
	// It returns *TakenError when the key is held, *SealedError when it is sealed, *UnavailableError when the backend
	// cannot tell. On any error nothing stays behind in the name of owner: what may have been set is released, if need
	// be after the return, on a context of its own that is bounded.
	Acquire(ctx context.Context, key, owner string, ttl time.Duration) (Grant, error)
	// Extend makes the lease last at least ttl from now; it never shortens it and never takes back a key that
	// expired. It returns ErrLost when g no longer holds the key.
	Extend(ctx context.Context, g Grant, ttl time.Duration) (Grant, error)
	// Release frees the key if g holds it, and returns ErrLost if it does not. A key that g has sealed stays sealed
	// and is a success, as is a key that is gone when an earlier reply about it was lost.
	Release(ctx context.Context, g Grant) error
	// Seal swaps the held key for value, which stays for retention or until Unseal. Sealing again with the same
	// token and value is a success. It returns ErrLost when g no longer holds the key.
	Seal(ctx context.Context, g Grant, token uint64, value []byte, retention time.Duration) error
	// Unseal frees a sealed key. A key that is free or held is left as it is, without an error.
	Unseal(ctx context.Context, key string) error
	// Inspect tells what is known of key now, without changing it.
	Inspect(ctx context.Context, key string) (State, error)
}

// Grant is a lease as the backend granted it.
type Grant struct {
	// Key is the backend's name of the key, and Owner the unique text that holds it.
	Key, Owner string
	// Token is the first fencing token of the lease and Tokens how many from it on are reserved for the lease, so that
	// local holders that hand it over each get their own without a round trip. At least 1.
	Token, Tokens uint64
	// Deadline is until when the lease is certain to be valid: counted from the sending of the request, on this
	// process's monotonic clock, less the drift that clocks may have.
	Deadline time.Time

	leftOut uint64 // the nodes of a quorum that were not asked for it, as a set of bits
}

// Watcher is what a Backend may implement to tell waiters that a key may have become free.
// Without it they poll.
type Watcher interface {
	// Watch returns once it is subscribed to key. The channel, which has room for one signal, gets one whenever the key
	// may have changed, and when the subscription was interrupted, and is closed when it ended for good and Watch should be
	// called again; stop ends it and must be called.
	Watch(ctx context.Context, key string) (changed <-chan struct{}, stop func(), err error)
}

// Status is what a key is: free, held or sealed.
type Status int

// The three states of a key.
const (
	Free Status = iota
	Held
	Sealed
)

// String returns "free", "held" or "sealed".
func (s Status) String() string {
	switch s {
	case Free:
		return "free"
	case Held:
		return "held"
	case Sealed:
		return "sealed"
	default:
		return "unknown"
	}
}

// State is what Inspect tells of a key.
type State struct {
	// Status is what the key is: free, held or sealed.
	Status Status
	// Owner is the full owner text of a held key; it names the holder's instance. See also [TakenError].
	Owner string
	// Token is the fencing token the key was sealed with, or the first one of the lease that holds it, 0 where that is
	// not known (a key locked by another library).
	Token uint64
	// Value is what a sealed key was sealed with. It must not be modified.
	Value []byte
	// ExpiresIn is how long the key stays held or sealed if nobody does anything; 0 where it has no expiry at all.
	ExpiresIn time.Duration
}
