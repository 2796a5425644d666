package check

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
)

// Hanging is a backend whose Acquire gives no answer until its context ends while Hangs is set, and
// fails at once while Fails is set.
type Hanging struct {
	core.Sealer
	Hangs, Fails atomic.Bool
}

// Open implements core.Opener.
func (b *Hanging) Open(core.Environment) (core.Backend, error) { return b, nil }

// Acquire implements core.Backend.
func (b *Hanging) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	why := errors.New("no answer")
	switch {
	case b.Hangs.Load():
		<-ctx.Done()
		why = ctx.Err()
	case !b.Fails.Load():
		return b.Sealer.Acquire(ctx, r)
	}
	return core.Grant{}, &core.UnavailableError{Key: r.Key, Nodes: []error{why}}
}

// Orphan leaves an orphan under the key.
func Orphan(t testing.TB, l *core.Locker, key string) {
	t.Helper()
	k := Acquire(t, l, key, core.WithTTL(20*time.Millisecond), core.WithMaxHold(0), core.WithOrphan(time.Hour))
	<-k.Context().Done()
	for st := (core.State{}); st.Status != core.Orphaned; time.Sleep(time.Millisecond) {
		var err error
		st, err = l.Inspect(context.Background(), key)
		OK(t, "Inspect", err)
	}
}
