package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A panic in a process that lives is known at once, and not when the lease ends. Recover decides.
func TestPanic_KnownAtOnce(t *testing.T) {
	t.Parallel()
	l, b := check.Locker(t, backendtest.Memory()), check.Locker(t, backendtest.Memory())
	runs := 0
	h := func(w http.ResponseWriter, _ *http.Request) {
		if runs++; runs == 1 {
			panic("oops")
		}
		_, _ = w.Write([]byte("paid"))
	}
	s := orders(t, l, h)
	if a := s.order(""); a.status != http.StatusInternalServerError {
		t.Errorf("a panic is %d", a.status)
	}
	s.order("").refused(t, idempotency.CodeOutcomeUnknown)
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}

	runs = 0
	s = orders(t, b, h, idempotency.Recover(func(http.ResponseWriter, *http.Request, idempotency.Run) idempotency.Recovery {
		return idempotency.RunHandler
	}))
	s.order("")
	s.order("").want(t, 200, "paid", false)
	s.order("").want(t, 200, "paid", true)
}

// A call whose function failed is unknown at once, even to Recover that is still in doubt.
func TestDo_FailedAtOnce(t *testing.T) {
	t.Parallel()
	b := backendtest.Memory()
	d, other := newDoer(t, b), newDoer(t, b)
	_, err := d.do(t, receipt{}, errors.New("the provider hung up"))
	check.Want(t, "the first call", err, idempotency.ErrUnknown)
	doubt := idempotency.RecoverWith(func(context.Context, idempotency.Run) (receipt, idempotency.Recovery, error) {
		return receipt{}, idempotency.StillUnknown, nil
	})
	for range 2 {
		_, err = d.do(t, receipt{}, nil)
		check.Want(t, "a retry", err, idempotency.ErrUnknown)
		_, err = other.do(t, receipt{}, nil, doubt)
		check.Want(t, "a retry elsewhere, in doubt", err, idempotency.ErrUnknown)
	}
	d.ran(t, 1)
	other.ran(t, 0)
}

// With RunAgain a server error does not let another payload run under the key.
func TestRunAgain_PayloadStaysBound(t *testing.T) {
	t.Parallel()
	runs := 0
	s := orders(t, check.Locker(t, backendtest.Memory()), func(w http.ResponseWriter, _ *http.Request) {
		switch runs++; runs {
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
		case 2:
			panic("oops")
		default:
			_, _ = w.Write([]byte("paid"))
		}
	}, idempotency.RunAgain())
	for range 2 {
		if a := s.order("7 EUR"); a.status != http.StatusInternalServerError || a.code() != "" {
			t.Errorf("got %d %s", a.status, a.body)
		}
		s.order("9 EUR").refused(t, idempotency.CodeKeyReused)
	}
	s.order("7 EUR").want(t, 200, "paid", false)
	s.order("7 EUR").want(t, 200, "paid", true)
	if runs != 3 {
		t.Errorf("%d runs", runs)
	}

	d := newDoer(t, backendtest.Memory())
	_, err := d.do(t, receipt{}, errors.New("oh"), idempotency.RunAgain(), idempotency.Payload([]byte("a")))
	if err == nil || errors.Is(err, idempotency.ErrUnknown) {
		t.Errorf("the first call: %v", err)
	}
	_, err = d.do(t, receipt{}, nil, idempotency.RunAgain(), idempotency.Payload([]byte("b")))
	check.Want(t, "another payload", err, idempotency.ErrMismatch)
	_, err = d.do(t, receipt{}, nil, idempotency.RunAgain(), idempotency.Payload([]byte("a")))
	check.OK(t, "the retry", err)
}

// A step that failed is an orphan at once: onelanectl shows it, and frees it.
func TestStep_FailedAtOnce(t *testing.T) {
	t.Parallel()
	b := &lastKey{MemoryBackend: backendtest.Memory()}
	l := check.Locker(t, b)
	if _, ran, err := oneStep(t, l, "charge", errDeclined); !ran || err != errDeclined {
		t.Fatalf("ran %v, %v", ran, err)
	}
	st, err := b.Inspect(t.Context(), b.key)
	if err != nil || st.Status != core.Orphaned {
		t.Fatalf("the step %q is %v, %v", b.key, st.Status, err)
	}
	if _, ran, err := oneStep(t, l, "charge", nil); ran || !errors.Is(err, idempotency.ErrStepUnknown) {
		t.Errorf("ran %v, %v", ran, err)
	}
	check.OK(t, "Unseal", b.Unseal(t.Context(), b.key))
	if _, ran, err := oneStep(t, l, "charge", nil); !ran || err != nil {
		t.Errorf("ran %v, %v", ran, err)
	}
}

// lastKey notes the key that was acquired last.
type lastKey struct {
	*backendtest.MemoryBackend
	key string
}

func (b *lastKey) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	b.key = r.Key
	return b.MemoryBackend.Acquire(ctx, r)
}
