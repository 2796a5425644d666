package core

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The errors of this package. Match them with [errors.Is]; the types carry the details.
var (
	// ErrTaken says that somebody else holds the key. See [TakenError].
	ErrTaken = errors.New("core: key is taken")
	// ErrSealed says that the key was sealed with a value instead of freed. See [SealedError].
	ErrSealed = errors.New("core: key is sealed")
	// ErrLost says that a lock ended before its holder released it: its lease ran out, or the key is gone or somebody
	// else's. It is final.
	ErrLost = errors.New("core: lock is lost")
	// ErrUnavailable says that the backend could not decide: it is down, too slow, or answers with an error. Whether
	// the call had an effect is unknown. It never matches ErrTaken, nor a context's error: a call that the caller's context ended
	// matches that context's error instead, and whether it had an effect is as unknown. See [UnavailableError].
	ErrUnavailable = errors.New("core: backend is unavailable")
	// ErrInvalidKey says that a key breaks the rules of [Locker.Acquire], or that it holds a foreign value in Redis.
	ErrInvalidKey = errors.New("core: invalid key")
	// ErrClosed says that the Locker was closed.
	ErrClosed = errors.New("core: locker is closed")
	// ErrReleased says that a lock was used after its holder released or sealed it.
	ErrReleased = errors.New("core: lock is already released")
)

// TakenError says who holds a key and for how long. It matches [ErrTaken], and the error of the context that ended
// the wait, if one did.
type TakenError struct {
	// Key is the key as it was asked for.
	Key string
	// Holder names the lease that holds the key: "<instance>/<random>", see [WithInstance]. It is for logs and
	// operators; do not send it to clients. Empty where it is not known.
	Holder string
	// Tag is what the holder passed to [WithTag].
	Tag string
	// RetryAfter is when the lease runs out if it is not renewed; 0 where that is not known.
	RetryAfter time.Duration
	// Cause is the context's error when it ended the wait, else nil.
	Cause error

	contested bool // on a quorum: nobody was seen to hold it on a majority
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
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

// Is makes the error match [ErrTaken].
func (e *TakenError) Is(target error) bool { return target == ErrTaken }

// Unwrap returns the context's error that ended the wait, if any.
func (e *TakenError) Unwrap() error { return e.Cause }

// SealedError carries the value that a key was sealed with. It matches [ErrSealed].
type SealedError struct {
	// Key is the key as it was asked for.
	Key string
	// Value is shared by all who wait for the key: it must not be modified.
	Value []byte
	// Token is the fencing token of the holder that sealed the key.
	Token uint64
	// ExpiresIn is how long the seal stays.
	ExpiresIn time.Duration
}

// Error names the key.
func (e *SealedError) Error() string {
	return fmt.Sprintf("core: key %q is sealed for %v", e.Key, e.ExpiresIn.Round(time.Millisecond))
}

// Is makes the error match [ErrSealed].
func (e *SealedError) Is(target error) bool { return target == ErrSealed }

// UnavailableError says why the backend could not decide, node by node. It matches [ErrUnavailable] and each node's
// cause.
type UnavailableError struct {
	// Key is the key as it was asked for.
	Key string
	// Nodes are the causes, one for each node that did not answer as it should; at least one.
	Nodes []error
}

// Error names the key and each cause.
func (e *UnavailableError) Error() string {
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

// Unwrap returns each node's cause.
func (e *UnavailableError) Unwrap() []error { return e.Nodes }

// named gives a backend's error the key as the user wrote it.
func named(err error, key string) error {
	switch e := err.(type) {
	case *TakenError:
		e.Key = key
	case *SealedError:
		e.Key = key
	case *UnavailableError:
		e.Key = key
	default:
		if errors.Is(err, ErrLost) {
			return fmt.Errorf("core: key %q: %w", key, err)
		}
	}
	return err
}

func lostError(key, why string) error {
	return fmt.Errorf("core: key %q: %s: %w", key, why, ErrLost)
}
