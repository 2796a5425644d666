package core_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// down is how a test of a service simulates an outage: Memory, with one method of its own.
type down struct{ *backendtest.MemoryBackend }

func (down) Acquire(context.Context, core.Request) (core.Grant, error) {
	return core.Grant{}, &core.UnavailableError{Nodes: []error{errors.New("the test says so")}}
}

func TestNew_BackendThatEmbedsMemory(t *testing.T) {
	t.Parallel()
	l := check.Locker(t, down{backendtest.Memory()}, core.WithOutageWait(0))
	_, err := l.Acquire(t.Context(), "stock:42")
	check.Want(t, "Acquire", err, core.ErrUnavailable)
}
