package idempotency

import (
	"errors"
	"fmt"
	"time"
)

// The errors of this package. Match them with [errors.Is]; the types carry the details.
var (
	// ErrInFlight says that the first request with the key is still running. See [InFlightError].
	ErrInFlight = errors.New("idempotency: a request with this key is still running")
	// ErrMismatch says that the key was used with another request before. See [MismatchError].
	ErrMismatch = errors.New("idempotency: the key was used with another request")
	// ErrRecord says that what is stored under a key is no record that this version can read.
	ErrRecord = errors.New("idempotency: the record cannot be read")
	// ErrCompleted says that a claim was completed or abandoned before.
	ErrCompleted = errors.New("idempotency: the claim is over")
)

// InFlightError says that the first request with the key is still running. It matches [ErrInFlight], and the error of
// the context that ended the wait, if one did.
type InFlightError struct {
	// Key is the key as it was passed to Begin.
	Key string
	// RetryAfter is when the running request's lease ends if its process dies now; 0 where that is not known.
	RetryAfter time.Duration
	// Cause is the [*core.TakenError]; it names the holder, which is not for clients. It is nil where the context that
	// was passed to Begin carries the claim itself.
	Cause error
}

// Error names the key.
func (e *InFlightError) Error() string {
	return fmt.Sprintf("idempotency: key %q: a request with this key is still running", e.Key)
}

// Is makes the error match [ErrInFlight].
func (e *InFlightError) Is(target error) bool { return target == ErrInFlight }

// Unwrap returns the cause.
func (e *InFlightError) Unwrap() error { return e.Cause }

// MismatchError says that the key was used with another request before. It matches [ErrMismatch].
type MismatchError struct {
	// Key is the key as it was passed to Begin.
	Key string
	// Credentials is set when the credentials differ. Whether the payload differs too is not told then: a stranger
	// must not be able to guess at it.
	Credentials bool
	// Transport is that of the first request where it differs (see [WithTransport]). The payloads, which no two transports
	// write alike, are not compared then.
	Transport string
}

// Error names the key and what differs.
func (e *MismatchError) Error() string {
	what := "payload"
	switch {
	case e.Credentials:
		what = "credentials"
	case e.Transport != "":
		what = "transport: " + e.Transport
	}
	return fmt.Sprintf("idempotency: key %q was used with another %s", e.Key, what)
}

// Is makes the error match [ErrMismatch].
func (e *MismatchError) Is(target error) bool { return target == ErrMismatch }
