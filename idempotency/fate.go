package idempotency

import (
	"context"
	"net/http"
	"time"

	"github.com/onelane/onelane/internal/claim"
)

// Fate is what becomes of a key after an answer.
type Fate int

const (
	// KeepAnswer records the answer. Every retry gets it.
	KeepAnswer Fate = Fate(claim.Keep)
	// FreeKey means that nothing was done. A retry runs.
	FreeKey Fate = Fate(claim.Free)
	// OutcomeUnknown means that nobody knows what was done. A retry is refused, unless there is a
	// [Recover], or [RunAgain].
	OutcomeUnknown Fate = Fate(claim.Unknown)
)

// DefaultFate returns what becomes of the key after an answer over HTTP:
//
//   - 400, 401, 403, 407, 409, 421, 422, 423, 425, 429, and 503 with Retry-After: nothing was done,
//     and the key is free. So it is after 307 and 308, which repeat the request elsewhere.
//   - 408, 499, 504, and 503 without Retry-After: the outcome is unknown. A middleware that limits
//     the time sends such an answer while its handler is still running.
//   - Everything else, 500 included, is recorded.
func DefaultFate(status int, header http.Header) Fate {
	switch status {
	case 307, 308, 400, 401, 403, 407, 409, 421, 422, 423, 425, 429:
		return FreeKey
	case 408, 499, 504:
		return OutcomeUnknown
	case 503:
		if header.Get("Retry-After") == "" {
			return OutcomeUnknown
		}
		return FreeKey
	}
	return KeepAnswer
}

// Run describes an earlier run of a request whose outcome is unknown. After several such runs,
// Begun and RequestID are of the first run, and Ended and Instance of the last.
type Run struct {
	// Begun is when it began, by the clock of its instance. It is zero if that is not known.
	Begun time.Time
	// Ended is when its claim ended, by this process's clock.
	Ended time.Time
	// Instance names the process that had the claim last (core.WithInstance).
	Instance string
	// RequestID is the X-Request-Id header of its request, or empty. Of a longer one it has the first
	// 36 bytes.
	RequestID string
}

// Recovery is the answer of a [Recover] function.
type Recovery int

const (
	// StillUnknown refuses the retry. The outcome stays unknown.
	StillUnknown Recovery = Recovery(claim.StillUnknown)
	// Answered means that the function wrote the answer, which is treated like the handler's.
	Answered Recovery = Recovery(claim.Answered)
	// RunHandler means that the earlier run did nothing. The handler runs, and its own answer decides
	// about the key, even if the function called [NothingDone].
	RunHandler Recovery = Recovery(claim.RunHandler)
)

// NothingDone declares that the handler of ctx did nothing. The key is free and a retry runs,
// whatever the handler answers, and even if it panics. This does not hold if a part of the answer
// was already sent. Without a claim in ctx NothingDone does nothing.
//
// It frees every key that ctx carries. Suppose a handler does something, and then passes its
// context to another handler in the same process. The inner handler must not call NothingDone: a
// status such as 409 frees the inner key alone. In a function of [Do] it frees the key of that
// function alone.
func NothingDone(ctx context.Context) { claim.DecideAll(ctx, claim.Free) }

// RetainFor sets how long the answer to the request of ctx is recorded, instead of [Retain]. A time
// below 10 ms counts as 10 ms, and one above ten years as ten years. If two middlewares with
// different keys guard the request, RetainFor affects the inner one. It does not change the window
// of [RefuseRepeats], which records no answer. Without another claim in ctx it does nothing.
func RetainFor(ctx context.Context, d time.Duration) {
	if k, ok := claim.Keyed(ctx); ok {
		k.KeepFor(max(d, claim.MinRetention))
	}
}

// ErrNoClaim means that the context carries no claim: the request runs unprotected, or the context
// is not the handler's.
var ErrNoClaim = claim.ErrNoClaim

// Token returns the fencing token of the innermost claim or lock that ctx carries. Pass it to a
// resource that refuses smaller tokens. The first call costs a round trip. If ctx carries none, the
// error is [ErrNoClaim].
func Token(ctx context.Context) (uint64, error) { return claim.Token(ctx) }

// Shutdown waits until no handler of this process runs under a claim, and until every answer is
// recorded. Call it after the server stopped accepting requests. It also waits for handlers whose
// clients hung up, which http.Server's Shutdown does not. If ctx ends before that, Shutdown ends
// the contexts of these handlers and returns an error. The error names how many handlers still ran
// and how many answers were not recorded.
func Shutdown(ctx context.Context) error { return claim.Shutdown(ctx) }
