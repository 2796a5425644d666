package grpclock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// hanging is a backend that can be made to give no answer: Acquire then fails when its context ends,
// or after a second.
type hanging struct {
	core.Backend
	hangs atomic.Bool
}

func newHanging(t testing.TB, opts ...core.Option) (*hanging, *core.Locker) {
	t.Helper()
	b := &hanging{Backend: testutil.Memory()}
	l, err := core.New(b, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return b, l
}

// Open implements core.Opener.
func (b *hanging) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *hanging) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if !b.hangs.Load() {
		return b.Backend.Acquire(ctx, r)
	}
	why := errors.New("no answer")
	select {
	case <-ctx.Done():
		why = ctx.Err()
	case <-time.After(time.Second):
	}
	return core.Grant{}, &core.UnavailableError{Key: r.Key, Nodes: []error{why}}
}
