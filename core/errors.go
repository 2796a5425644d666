package core

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onelane/onelane/internal/ownertext"
)

// The errors of this package. Match them with [errors.Is]; the types carry the details.
var (
	// ErrTaken means that another caller holds the key. See [TakenError].
	ErrTaken = errors.New("core: key is taken")
	// ErrSealed means that the key was sealed with a value. See [SealedError].
	ErrSealed = errors.New("core: key is sealed")
	// ErrOrphaned means that the key's last holder disappeared. See [OrphanedError].
	ErrOrphaned = errors.New("core: key is orphaned")
	// ErrLost means that a lock ended before its holder released it. The lease ended, the key is
	// gone from the backend, or another owner has the key. A lost lock stays lost.
	ErrLost = errors.New("core: lock is lost")
	// ErrUnavailable means that the backend could not decide. Whether the call had an effect is
	// unknown. It never matches ErrTaken or a context's error. If the caller's context ended the
	// call, the error matches that context's error and not ErrUnavailable. See [UnavailableError].
	ErrUnavailable = errors.New("core: backend is unavailable")
	// ErrInvalidKey means that a key breaks the rules of [Locker.Acquire], or that the backend holds
	// something under it that is no lock.
	ErrInvalidKey = errors.New("core: invalid key")
	// ErrClosed means that the Locker was closed.
	ErrClosed = errors.New("core: locker is closed")
	// ErrNoSeals means that the Locker's backend is no [Sealer]. Its text names the backends that are.
	ErrNoSeals = errors.New("core: this backend keeps leases and tokens only; for Seal, DoOnce, Every, Adopt, " +
		"WithOrphan and idempotency, use a Locker on one Redis, Sentinel, Redis Cluster, etcd, ZooKeeper or an SQL table")
	// ErrReleased means that a lock was used after its holder released or sealed it.
	ErrReleased = errors.New("core: lock is already released")
)

// TakenError says who holds a key and for how long. It matches [ErrTaken]. If a context ended the
// wait, it also matches that context's error and its cause.
type TakenError struct {
	// Key is the key as the caller wrote it.
	Key string
	// Holder names the lease: "<instance>/<random>", see [WithInstance]. It is for logs and
	// operators; do not send it to clients. It is empty if it is not known. If another program
	// wrote the value of the key, Holder has its size, and nothing of it.
	Holder string
	// Tag is what the holder passed to [WithTag].
	Tag string
	// RetryAfter is when the lease ends if it is not renewed, or 0 if that is not known.
	RetryAfter time.Duration
	// Cause matches the error of the context that ended the wait, and its cause. It is nil if no
	// context did.
	Cause error
	// Contested reports whether several callers share the votes of a quorum and none has a
	// majority. Backends set it; Acquire tries again.
	Contested bool
	// QueueFull reports whether the call was refused because [WithMaxWaiters] callers of this
	// process wait already. Holder, Tag and RetryAfter are not known then.
	QueueFull bool
}

// Error names the key and the holder.
func (e *TakenError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "core: key %q is taken", e.Key)
	if e.Holder != "" {
		fmt.Fprintf(&b, " by %s", e.Holder)
	}
	if e.RetryAfter > 0 {
		fmt.Fprintf(&b, " for up to %v", e.RetryAfter.Round(time.Millisecond))
	}
	if e.QueueFull {
		b.WriteString(": WithMaxWaiters callers of this process wait already; try again later")
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

// Is makes the error match [ErrTaken].
func (e *TakenError) Is(target error) bool { return target == ErrTaken }

// Unwrap returns the error of the context that ended the wait, or nil.
func (e *TakenError) Unwrap() error { return e.Cause }

// SealedError carries the value that a key was sealed with. It matches [ErrSealed].
type SealedError struct {
	// Key is the key as the caller wrote it.
	Key string
	// All waiters of the key share Value. It must not be modified.
	Value []byte
	// Token is the fencing token of the holder that sealed the key, or 0 if it had none.
	Token uint64
}

// Error names the key.
func (e *SealedError) Error() string { return fmt.Sprintf("core: key %q is sealed", e.Key) }

// Is makes the error match [ErrSealed].
func (e *SealedError) Is(target error) bool { return target == ErrSealed }

// OrphanedError says that the last holder of a key disappeared: its lease ended without Release or
// Seal, and it had asked for an orphan ([WithOrphan]). It matches [ErrOrphaned].
type OrphanedError struct {
	// Key is the key as the caller wrote it.
	Key string
	// Owner is the owner text of the lease that ended. It names the holder's instance.
	Owner string
	// Since is when the lease ended, by this process's clock.
	Since time.Time
}

// Error names the key, the holder that disappeared and what to do.
func (e *OrphanedError) Error() string {
	holder, _ := ownertext.Split(e.Owner)
	return fmt.Sprintf("core: key %q is orphaned: the lease of %s ended at %s without Release or Seal; adopt it (Locker.Adopt) or free it (Locker.Unseal)",
		e.Key, holder, e.Since.Format(time.RFC3339))
}

// Is makes the error match [ErrOrphaned].
func (e *OrphanedError) Is(target error) bool { return target == ErrOrphaned }

// UnavailableError says why the backend could not decide. It matches [ErrUnavailable] and each
// cause.
type UnavailableError struct {
	// Key is the key as the caller wrote it, or empty if the call was about no key.
	Key string
	// Nodes are the causes, one for each node that failed. There is at least one.
	Nodes []error
	// Permanent reports whether trying again cannot help: a wrong password, a forbidden command.
	// Acquire returns such an error at once.
	Permanent bool
}

// Error names the key and each cause.
func (e *UnavailableError) Error() string {
	if e.Key == "" {
		return "core: backend is unavailable: " + e.causes()
	}
	return fmt.Sprintf("core: backend is unavailable for key %q: %s", e.Key, e.causes())
}

func (e *UnavailableError) causes() string {
	causes := make([]string, len(e.Nodes))
	for i, err := range e.Nodes {
		causes[i] = err.Error()
	}
	return strings.Join(causes, "; ")
}

// Is makes the error match [ErrUnavailable].
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Unwrap returns the causes.
func (e *UnavailableError) Unwrap() []error { return e.Nodes }

// withKey returns a backend's error with the key as the caller wrote it. The backend's own error is
// not changed: it may be shared.
func withKey(err error, key string) error {
	switch e := err.(type) {
	case *TakenError:
		c := *e
		c.Key = key
		return &c
	case *SealedError:
		c := *e
		c.Key = key
		return &c
	case *OrphanedError:
		c := *e
		c.Key = key
		return &c
	case *UnavailableError:
		c := *e
		c.Key = key
		return &c
	}
	if errors.Is(err, ErrLost) {
		return fmt.Errorf("core: key %q: %w", key, err)
	}
	return err
}
