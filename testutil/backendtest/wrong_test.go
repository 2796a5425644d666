package backendtest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// wrapping wraps its errors, as Go code usually does. A Locker looks at their types: it does not try
// again after an outage, and Adopt takes the backend's name for the caller's key.
type wrapping struct{ core.Backend }

func (b wrapping) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	if err != nil {
		err = fmt.Errorf("mydb: acquire: %w", err)
	}
	return g, err
}

// piling adds each extension to what the lease had, and its server counts from now.
type piling struct{ core.Backend }

func (b piling) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	longer, err := b.Backend.Extend(ctx, g, ttl)
	if err == nil {
		longer.Deadline = g.Deadline.Add(ttl)
	}
	return longer, err
}

// late counts the lease from the answer, and not from the request.
type late struct{ core.Backend }

func (b late) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	g.Deadline, g.Backend = time.Now().Add(r.TTL), nil // nil: not a grant of Memory
	return g, err
}

// narrow has a column of 255 bytes for keys, and a database that cuts what is longer.
type narrow struct{ core.Backend }

func (b narrow) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	key := r.Key
	r.Key = key[:min(len(key), 255)]
	g, err := b.Backend.Acquire(ctx, r)
	g.Key = key
	return g, err
}

// bare returns the context's error as it is.
type bare struct{ core.Backend }

func (b bare) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	if ctx.Err() != nil {
		return g, ctx.Err()
	}
	return b.Backend.Extend(ctx, g, ttl)
}

// around is right, as a backend that counts or logs is.
type around struct{ core.Backend }

var wrongBackends = map[string]struct {
	make  func(core.Backend) core.Backend
	found string // the case of the suite that finds it
}{
	"wrapping": {func(b core.Backend) core.Backend { return wrapping{b} }, "Acquire_TakenKey"},
	"piling":   {func(b core.Backend) core.Backend { return piling{b} }, "Extend_Lengthens"},
	"late":     {func(b core.Backend) core.Backend { return late{b} }, "Acquire_DeadlineCountsFromTheRequest"},
	"narrow":   {func(b core.Backend) core.Backend { return narrow{b} }, "Acquire_LongestNames"},
	"bare":     {func(b core.Backend) core.Backend { return bare{b} }, "Verbs_CanceledContext"},
	"right":    {func(b core.Backend) core.Backend { return b }, ""},
	"around":   {func(b core.Backend) core.Backend { return around{b} }, ""},
}

// Each wrong backend fails the suite. Its subtests would fail this test too, so they run in a
// separate process.
func TestTestBackend_FindsWrongBackends(t *testing.T) {
	if name := os.Getenv("ONELANE_TEST_WRONG"); name != "" {
		backendtest.TestBackend(t, func(t *testing.T) core.Backend {
			return wrongBackends[name].make(backendtest.Open(t, backendtest.Memory()))
		})
		return
	}
	t.Parallel()
	for name, wrong := range wrongBackends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestTestBackend_FindsWrongBackends$/^"+wrong.found)
			cmd.Env = append(os.Environ(), "ONELANE_TEST_WRONG="+name)
			out, err := cmd.CombinedOutput()
			switch {
			case wrong.found == "" && err != nil:
				t.Errorf("the suite fails a backend that is right: %v\n%s", err, out)
			case wrong.found != "" && !strings.Contains(string(out), "--- FAIL: TestTestBackend_FindsWrongBackends/"+wrong.found):
				t.Errorf("the suite passes a backend that is %q: %s does not find it: %v\n%s", name, wrong.found, err, out)
			}
		})
	}
}
