package grpclock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// hanging is a backend that can be made to give no answer: Acquire then fails when its context ends.
// Or it fails at once.
type hanging struct {
	core.Backend
	hangs, fails atomic.Bool
}

func newHanging(t testing.TB, opts ...core.Option) (*hanging, *core.Locker) {
	t.Helper()
	b := &hanging{Backend: backendtest.Memory()}
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
	why := errors.New("no answer")
	switch {
	case b.hangs.Load():
		<-ctx.Done()
		why = ctx.Err()
	case !b.fails.Load():
		return b.Backend.Acquire(ctx, r)
	}
	return core.Grant{}, &core.UnavailableError{Key: r.Key, Nodes: []error{why}}
}
