package claim

import (
	"context"
	"errors"
	"time"

	"github.com/onelane/onelane/core"
)

type claimKey struct{}

// endless is the context of a request without its end, and with the request's claim.
type endless struct {
	request context.Context
	claim   *Claim
}

func (e *endless) Deadline() (deadline time.Time, ok bool) { return deadline, false }
func (e *endless) Done() <-chan struct{}                   { return nil }
func (e *endless) Err() error                              { return nil }

func (e *endless) Value(key any) any {
	if key == (claimKey{}) {
		return e.claim
	}
	return e.request.Value(key)
}

// detach makes the claim's context. It does not end with ctx, because a client that hangs up must
// not leave the request half done. It ends with the claim, at the deadline, and after MaxRun.
func (k *Claim) detach(ctx context.Context, deadline time.Time) {
	end, cause := time.Now().Add(k.claims.MaxRun), error(ErrMaxRun)
	if !deadline.IsZero() && deadline.Before(end) {
		end, cause = deadline, context.DeadlineExceeded
	}
	k.endless = endless{ctx, k}
	inner, cancel := context.WithCancelCause(core.WithLock(&k.endless, k.lock))
	k.cancel = cancel
	k.ctx, k.cancelTimer = context.WithDeadlineCause(inner, end, cause)
	running.add(k) // it can be canceled from here on, and must be known before the client may be gone
	if ctx.Done() != nil {
		k.unwatch = context.AfterFunc(ctx, func() { k.clientGone(context.Cause(ctx)) })
	}
	// The lock's own context also ends when the key is sealed, and the handler may go on after that.
	k.lock.OnLoss(k.cancel)
	// When the client hangs up, the contexts of the plain locks around the claim end, and no longer
	// show a loss. The outer claim listens to the locks around it, and its end ends the inner
	// claim.
	for h, _ := ctx.Value(heldKey{}).(*held); h != nil && h.outer == k.outer; h = h.around {
		h.lock.OnLoss(k.cancel)
	}
}

// lingering is how long a call to the backend goes on when the client seems to be gone.
const lingering = time.Second

// Linger returns a context for one call to the backend. It ends with ctx, but a second later if ctx is
// canceled. net/http cancels it even if the client only closed its half of the connection, and waits
// for the answer. Call answered after the call.
func Linger(ctx context.Context) (longer context.Context, answered func() bool) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	return longer, context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		if cause != context.Canceled { // a deadline of the server, or a lost lock around the request
			cancel(cause)
			return
		}
		time.AfterFunc(lingering, func() { cancel(cause) })
	})
}

// clientGone lets the handler go on without its client. It ends the handler if too many go on
// already, or if a lock around the claim is lost.
func (k *Claim) clientGone(cause error) {
	if errors.Is(cause, core.ErrLost) || errors.Is(cause, core.ErrClosed) || !running.detach(k) {
		k.cancel(cause) // does nothing after Close
	}
}

// Gin returns the request's context if ctx is made of a gin.Context, which does not look into it.
// Package ginlock sets it.
var Gin = func(context.Context) context.Context { return nil }

// FromContext returns the innermost claim that ctx carries.
func FromContext(ctx context.Context) (*Claim, bool) {
	k, ok := ctx.Value(claimKey{}).(*Claim)
	if ok {
		return k, true
	}
	if inner := Gin(ctx); inner != nil {
		k, ok = inner.Value(claimKey{}).(*Claim)
	}
	return k, ok
}

// Keyed returns the innermost claim of ctx whose key tells one request from others.
func Keyed(ctx context.Context) (*Claim, bool) {
	k, _ := FromContext(ctx)
	for ; k != nil && k.ofContent; k = k.outer {
	}
	return k, k != nil
}

// Outer returns the claim that the context carried when k was made, or nil.
func (k *Claim) Outer() *Claim { return k.outer }

// SuggestAll is Suggest for all claims that ctx carries. A request inside a function says nothing
// about that function, unless its outcome is unknown.
func SuggestAll(ctx context.Context, f Fate) {
	for k, _ := FromContext(ctx); k != nil && (f == Unknown || !k.OfFunction()); k = k.outer {
		k.Suggest(f)
	}
}

// Carries reports whether ctx carries a claim on key.
func Carries(ctx context.Context, key string) bool {
	k, _ := FromContext(ctx)
	for ; k != nil && k.key != key; k = k.outer {
	}
	return k != nil
}

// carries reports whether ctx carries a live claim on the lock of this name.
func carries(ctx context.Context, l *core.Locker, name string) bool {
	k, _ := FromContext(ctx)
	for ; k != nil; k = k.outer {
		if k.name == name && k.claims.locker == l && k.lock.Err() == nil {
			return true
		}
	}
	return false
}
