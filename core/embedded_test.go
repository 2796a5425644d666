package core_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// down is how a test of a service simulates an outage: Memory, with one other method.
type down struct{ *backendtest.MemoryBackend }

func (down) Acquire(context.Context, core.Request) (core.Grant, error) {
	return core.Grant{}, &core.UnavailableError{Nodes: []error{errors.New("the test says so")}}
}

// Open is promoted from MemoryBackend, and returns the Memory inside.
func TestNew_BackendThatEmbedsMemory(t *testing.T) {
	t.Parallel()
	l := check.Locker(t, down{backendtest.Memory()}, core.WithOutageWait(0))
	_, err := l.Acquire(t.Context(), "stock:42")
	check.Want(t, "Acquire", err, core.ErrUnavailable)
}

// counting is an Opener of any other one. Its Open returns a new backend for each Locker.
type counting struct {
	core.Backend // of one Locker
	of           core.Opener
	acquires     *atomic.Int64
}

func (c counting) Open(env core.Environment) (_ core.Backend, err error) {
	c.Backend, err = c.of.Open(env)
	return c, err
}

func (c counting) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	c.acquires.Add(1)
	return c.Backend.Acquire(ctx, r)
}

func TestNew_OpenerThatMakesItsOwnType(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	l := check.Locker(t, counting{of: backendtest.Memory(), acquires: &n})
	k, err := l.Acquire(t.Context(), "stock:42")
	check.OK(t, "Acquire", err)
	check.OK(t, "Release", k.Release(t.Context()))
	if n.Load() != 1 {
		t.Errorf("%d calls of Acquire", n.Load())
	}
}
