package claim

import (
	"context"
	"errors"

	"github.com/onelane/onelane/core"
)

// ErrNoClaim means that a context carries neither a claim nor a lock of an adapter.
var ErrNoClaim = errors.New("idempotency: the context carries no claim")

type heldKey struct{}

// held is a plain lock of an adapter, and the claim around it.
type held struct {
	lock  *core.Lock
	outer *Claim
}

// WithLock returns the context for a handler that runs under a plain lock.
func WithLock(k *core.Lock) context.Context {
	ctx := core.WithLock(k.Context(), k)
	outer, _ := FromContext(ctx)
	return context.WithValue(ctx, heldKey{}, held{k, outer})
}

// Token returns the fencing token of the innermost claim or lock that ctx carries.
func Token(ctx context.Context) (uint64, error) {
	k, _ := FromContext(ctx)
	if h, ok := ctx.Value(heldKey{}).(held); ok && h.outer == k {
		return h.lock.Token(ctx)
	}
	if k == nil {
		return 0, ErrNoClaim
	}
	return k.Token(ctx)
}
