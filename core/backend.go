package core

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// Opener makes the [Backend] of a Locker. [New] calls Open once and returns its error.
// redisbackend.New, zkbackend.New, etcdbackend.New, sqlbackend.New and backendtest.Memory return an
// Opener.
type Opener interface {
	// Open returns a new backend for one Locker. It does not talk to the server. If the Opener is a
	// Backend, and Open returns one of another type, the Locker uses the Opener itself. So a test may
	// embed backendtest.Memory and replace a method.
	Open(Environment) (Backend, error)
}

// Environment tells a backend what it needs to know of its Locker.
type Environment struct {
	// TTL is the Locker's default (see [WithTTL]).
	TTL time.Duration
	// Logger receives warnings about nodes and failed clean-ups. It writes each message at most
	// every 10 s.
	Logger *slog.Logger
	// Meter makes the backend's instruments.
	Meter metric.Meter
}

// Backend is where leases live: Redis, an SQL table, memory. Every method is one atomic step on one
// key and never waits for a holder. A backend that also keeps values under its keys is a [Sealer];
// in any other backend a key is free or held.
//
// Implementations are safe for concurrent use and bound every call. A method returns soon after
// ctx's deadline. If ctx has no deadline or was canceled, it returns after its own time-out. If the
// outcome of a change is unknown, the error is an [*UnavailableError]. If ctx ended the call, that
// error also matches ctx's error. Return the error types of this package as they are: a Locker does
// not look for them in errors that wrap them. backendtest.TestBackend is the conformance suite.
type Backend interface {
	// Acquire makes one attempt to hold r.Key in the name of r.Owner. It returns *TakenError if the
	// key is held, *SealedError if it is sealed, *OrphanedError if it is orphaned, and
	// *UnavailableError if the backend cannot tell. After an error nothing stays held in the name
	// of r.Owner. The backend releases what the attempt may have set, in the background if need be.
	Acquire(ctx context.Context, r Request) (Grant, error)
	// Mint returns g with a fencing token that is larger than every earlier token of the key.
	// If g has a token, Mint returns g unchanged. If g no longer holds the key, it returns ErrLost.
	Mint(ctx context.Context, g Grant) (Grant, error)
	// Extend makes the lease last at least ttl from now. It never shortens a lease and never takes
	// back a lease that ended. If g no longer holds the key, it returns ErrLost.
	Extend(ctx context.Context, g Grant, ttl time.Duration) (Grant, error)
	// Release frees the key if g holds it, or if the key is g's orphan. Otherwise it returns
	// ErrLost. A key that g sealed stays sealed, and Release returns nil. It forgets the waiters that
	// it returns: one that still waits says so again when it asks in vain.
	Release(ctx context.Context, g Grant) (Waiters, error)
	// Inspect returns the state of key without changing it.
	Inspect(ctx context.Context, key string) (State, error)
	// Watch sends a signal on changed when key may have become free, and when a signal may have
	// been missed. The channel has room for one signal. If the subscription ends, the backend
	// closes the channel, and the caller should call Watch again. The caller must call stop. A
	// backend that cannot tell returns a nil channel and a no-op stop; its waiters poll.
	Watch(ctx context.Context, key string) (changed <-chan struct{}, stop func(), err error)
	// Ping returns nil if the backend can decide about keys now. It makes the connections that
	// Acquire needs, and takes at most one round trip more. The error is an [*UnavailableError]
	// without a key. It names each node that did not answer.
	Ping(ctx context.Context) error
	// Close ends background work. The clients that the backend was made from stay open.
	Close() error
}

// Sealer is a [Backend] that can replace a lease by a value, and that remembers leases which ended
// without Release. A key of a Sealer is free, held, orphaned or sealed: Acquire honours
// Request.Orphan and Request.Adopt. backendtest.TestSealer is the conformance suite.
//
// A backend that cannot keep a value as safely as a lease is no Sealer. A quorum of Redis masters is
// none. Its Lockers return [ErrNoSeals] from every call that needs a Sealer, and never pass Orphan or
// Adopt to it.
type Sealer interface {
	Backend
	// Seal replaces the lease with value, which stays for retention or until Unseal. It also
	// seals over g's own orphan. Sealing again with the same grant and value succeeds. If g no
	// longer holds the key, it returns ErrLost.
	Seal(ctx context.Context, g Grant, value []byte, retention time.Duration) error
	// Orphan ends the lease at once, so that the key is g's orphan for g.Orphan from now, which is
	// not 0. Doing that again succeeds. If g no longer holds the key, it returns ErrLost.
	Orphan(ctx context.Context, g Grant) error
	// Unseal frees a key that is sealed or orphaned. It leaves a free or held key alone.
	Unseal(ctx context.Context, key string) error
}

// Request is what the caller of [Backend] Acquire asks for.
type Request struct {
	// Key is the backend's name of the key. Owner is a text that no other attempt uses.
	Key, Owner string
	// TTL is how long the lease lasts from the moment the backend grants it.
	TTL time.Duration
	// Token asks for a fencing token in the same step. A backend may mint one unasked.
	Token bool
	// Orphan is how long the key stays orphaned if the lease ends without Release or Seal.
	// With 0 the key becomes free.
	Orphan time.Duration
	// Waiter names the Locker of a caller that waits if the key is held, or is empty. Needs is how long
	// after a release the waiter may need to ask again, and the next Release tells of the waiter. With
	// 0, the waiter does not listen yet, and asks again at once when it does.
	Waiter string
	Needs  time.Duration
	// Adopt is the owner of an orphan that this attempt may take over, or empty.
	Adopt string
}

// Grant is a lease as the backend granted it.
type Grant struct {
	// Key is the backend's name of the key. Owner is the unique text that holds it.
	Key, Owner string
	// Token is the first fencing token of the lease, or 0 if none was minted. Tokens is how many
	// numbers, from Token on, belong to the lease. Each local holder of the lease gets one of them.
	Token, Tokens uint64
	// Deadline is the time until which the lease is certain to be valid, on this process's
	// monotonic clock. It counts from the time at which the request was sent, and leaves a margin
	// for the drift of clocks.
	Deadline time.Time
	// Orphan is Request.Orphan.
	Orphan time.Duration
	// Backend is for the backend's own notes about the lease. The engine passes it back unread.
	Backend any
}

// Waiters are other processes that asked for a key in vain during the lease that was released.
type Waiters struct {
	// Others is how many there are, or -1 if the backend does not know.
	Others int
	// Need is the longest [Request] Needs of them.
	Need time.Duration
}

// Status is the status of a key.
type Status int

// The statuses of a key.
const (
	Free Status = iota
	Held
	Sealed
	Orphaned
)

// String returns "free", "held", "sealed" or "orphaned".
func (s Status) String() string {
	switch s {
	case Free:
		return "free"
	case Held:
		return "held"
	case Sealed:
		return "sealed"
	case Orphaned:
		return "orphaned"
	default:
		return "unknown"
	}
}

// State is what Inspect reports about a key.
type State struct {
	// Status is free, held, sealed or orphaned.
	Status Status
	// Owner is the owner text of a held or orphaned key. It names the holder's instance. If another
	// program wrote the value of the key, [Locker.Inspect] returns its size, and nothing of it.
	Owner string
	// Token is the fencing token that the key was sealed with. For a held or orphaned key, it is
	// the first token of the lease. It is 0 if there is none or the backend does not know it.
	Token uint64
	// Value is the value of a sealed key. It must not be modified.
	Value []byte
	// ExpiresIn is how long the lease, the seal or the orphan lasts if nobody acts. It is 0 if the
	// key has no expiry.
	ExpiresIn time.Duration
	// Since is when an orphaned key's lease ended, by this process's clock. For a held key, Since
	// is when the holder's process asked for the key, by the clock of that process. It is zero if
	// it is not known.
	Since time.Time
}
