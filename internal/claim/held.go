package claim

import (
	"context"
	"errors"
	"log/slog"

	"github.com/onelane/onelane/core"
)

// ErrNoClaim means that a context carries neither a claim nor a lock of an adapter.
var ErrNoClaim = errors.New("idempotency: the context carries no claim; pass the request's context, in Gin c.Request.Context(); " +
	"a claim of RefuseRepeats alone has no key for Step and DeriveKey, so put ByHeader or ByKey around it")

type heldKey struct{}

// held is a plain lock of an adapter, and the claim and the plain lock around it.
type held struct {
	lock   *core.Lock
	outer  *Claim
	around *held
}

// WithLock returns the context for a handler that runs under a plain lock.
func WithLock(k *core.Lock) context.Context {
	ctx := core.WithLock(k.Context(), k)
	outer, _ := FromContext(ctx)
	around, _ := ctx.Value(heldKey{}).(*held)
	return context.WithValue(ctx, heldKey{}, &held{k, outer, around})
}

// ReleaseLock releases a plain lock, and reports whether it was lost before. A failure is logged.
func ReleaseLock(ctx context.Context, k *core.Lock, log *slog.Logger, route string) (lost bool) {
	err := k.Release(ctx)
	ctx = context.WithoutCancel(ctx)
	switch {
	case errors.Is(err, core.ErrLost):
		log.ErrorContext(ctx, "idempotency: the lock was lost while the handler ran; another may have run", "route", route, "error", err)
		return true
	case err != nil:
		log.WarnContext(ctx, "idempotency: a lock was not released; its key is free when its lease ends", "route", route, "error", err)
	}
	return false
}

// Token returns the fencing token of the innermost claim or lock that ctx carries.
func Token(ctx context.Context) (uint64, error) {
	k, _ := FromContext(ctx)
	if h, ok := ctx.Value(heldKey{}).(*held); ok && h.outer == k {
		return h.lock.Token(ctx)
	}
	if k == nil {
		return 0, ErrNoClaim
	}
	return k.Token(ctx)
}
