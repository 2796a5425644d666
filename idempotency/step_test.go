package idempotency_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// stepLocker has short leases: a step that failed is unknown when its lease has ended. They are longer
// than a busy machine stands still.
func stepLocker(t testing.TB, b core.Opener) *core.Locker {
	t.Helper()
	return lockerWith(t, b, 5*time.Second)
}

// longLocker is for tests that wait for the end of no lease.
func longLocker(t testing.TB, b core.Opener) *core.Locker {
	t.Helper()
	return lockerWith(t, b, time.Minute)
}

func lockerWith(t testing.TB, b core.Opener, ttl time.Duration) *core.Locker {
	t.Helper()
	l, err := core.New(b, core.WithTTL(ttl))
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// runStep calls fn in the handler of a request with the key k, which is freed afterwards.
func runStep(t testing.TB, l *core.Locker, body string, fn func(ctx context.Context), opts ...idempotency.HTTPOption) {
	t.Helper()
	ran := false
	h := idempotency.ByHeader("Idempotency-Key", append(opts, idempotency.WithLocker(l))...)(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			ran = true
			fn(r.Context())
			w.WriteHeader(http.StatusConflict) // nothing was done, as far as the claim goes
		}))
	a := ended(t, func() answer { // the key of the last request may be free a moment later
		r := httptest.NewRequest(http.MethodPost, "/pay", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return answer{w.Code, w.Body.String(), w.Header()}
	})
	if !ran {
		t.Fatalf("the handler did not run: %d %s", a.status, a.body)
	}
}

type charge struct{ ID string }

var errDeclined = errors.New("declined")

// oneStep runs a step in a separate request. It returns what the step returned, and whether it ran.
func oneStep(t testing.TB, l *core.Locker, name string, fails error, opts ...idempotency.HTTPOption) (got charge, ran bool, err error) {
	t.Helper()
	runStep(t, l, "7 EUR", func(ctx context.Context) {
		got, err = idempotency.Step(ctx, name, func(context.Context) (charge, error) {
			ran = true
			return charge{name}, fails
		})
	}, opts...)
	return got, ran, err
}

func TestStep(t *testing.T) {
	t.Parallel()
	one := redisbackend.New(testutil.Redis(t).Client())
	one.NodeTimeout = 10 * time.Second // the machine may be busy
	for name, b := range map[string]core.Opener{
		"memory": backendtest.Memory(), "Redis": one,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := stepLocker(t, b)
			for i := range 3 {
				got, ran, err := oneStep(t, l, "done", nil)
				if got.ID != "done" || ran != (i == 0) || err != nil {
					t.Errorf("run %d: %+v, ran %v, %v", i, got, ran, err)
				}
			}
			for range 2 {
				_, ran, err := oneStep(t, l, "nothing done", fmt.Errorf("%w: %w", idempotency.ErrNothingDone, errDeclined))
				if !ran || !errors.Is(err, errDeclined) || !errors.Is(err, idempotency.ErrNothingDone) {
					t.Errorf("ran %v, %v", ran, err)
				}
			}
			if _, ran, err := oneStep(t, l, "failed", errDeclined); !ran || err != errDeclined {
				t.Errorf("ran %v, %v", ran, err)
			}
			for range 2 { // waits until the lease has ended
				if _, ran, err := oneStep(t, l, "failed", nil); ran || !errors.Is(err, idempotency.ErrStepUnknown) {
					t.Errorf("after a failure: ran %v, %v", ran, err)
				}
			}
		})
	}
}

func TestStep_Panic(t *testing.T) {
	t.Parallel()
	l := stepLocker(t, backendtest.Memory())
	runStep(t, l, "7 EUR", func(ctx context.Context) {
		defer func() {
			if recover() != "oh" {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = idempotency.Step(ctx, "charge", func(context.Context) (int, error) { panic("oh") })
	})
	if _, ran, err := oneStep(t, l, "charge", nil); ran || !errors.Is(err, idempotency.ErrStepUnknown) {
		t.Errorf("ran %v, %v", ran, err)
	}
}

// Two goroutines with the same step: one runs it, and both get its result.
func TestStep_SameNameAtOnce(t *testing.T) {
	t.Parallel()
	l := longLocker(t, backendtest.Memory())
	runStep(t, l, "7 EUR", func(ctx context.Context) {
		var runs atomic.Int64
		results := make(chan error, 4)
		for range cap(results) {
			go func() {
				n, err := idempotency.Step(ctx, "charge", func(context.Context) (int64, error) {
					time.Sleep(10 * time.Millisecond)
					return runs.Add(1), nil
				})
				if err == nil && n != 1 {
					err = fmt.Errorf("result %d", n)
				}
				results <- err
			}()
		}
		for range cap(results) {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestStep_InsideItself(t *testing.T) {
	t.Parallel()
	runStep(t, longLocker(t, backendtest.Memory()), "7 EUR", func(ctx context.Context) {
		_, err := idempotency.Step(ctx, "charge", func(ctx context.Context) (int, error) {
			if n, err := idempotency.Step(ctx, "another", func(context.Context) (int, error) { return 1, nil }); n != 1 || err != nil {
				t.Errorf("another step inside: %d, %v", n, err)
			}
			return idempotency.Step(ctx, "charge", func(context.Context) (int, error) {
				t.Error("the step ran inside itself")
				return 0, nil
			})
		})
		if err == nil || !strings.Contains(err.Error(), "inside itself") {
			t.Errorf("%v", err)
		}
	})
}

// A freed key may serve another request, which must not get the steps of the first.
func TestStep_OfAnotherPayload(t *testing.T) {
	t.Parallel()
	l := longLocker(t, backendtest.Memory())
	if _, ran, err := oneStep(t, l, "charge", nil); !ran || err != nil {
		t.Fatalf("ran %v, %v", ran, err)
	}
	runStep(t, l, "8 EUR", func(ctx context.Context) {
		got, err := idempotency.Step(ctx, "charge", func(context.Context) (charge, error) {
			t.Error("it ran")
			return charge{}, nil
		})
		if err == nil || got.ID != "" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestStep_ResultDoesNotDecode(t *testing.T) {
	t.Parallel()
	l := stepLocker(t, backendtest.Memory())
	if _, _, err := oneStep(t, l, "charge", nil); err != nil {
		t.Fatal(err)
	}
	runStep(t, l, "7 EUR", func(ctx context.Context) {
		_, err := idempotency.Step(ctx, "charge", func(context.Context) (int, error) {
			t.Error("the step ran again")
			return 1, nil
		})
		// The error does not advise another name: the step would run again.
		if err == nil || !strings.Contains(err.Error(), "is no int") || !strings.Contains(err.Error(), "under another name the step would run again") {
			t.Errorf("a result of another type: %v", err)
		}
		if _, err := idempotency.Step(ctx, "no number", func(context.Context) (float64, error) { return math.NaN(), nil }); err == nil {
			t.Error("a result that is no JSON was recorded")
		}
		if _, err := idempotency.Step(ctx, "", func(context.Context) (int, error) { return 1, nil }); err == nil {
			t.Error("a step without a name ran")
		}
	})
	if _, ran, err := oneStep(t, l, "no number", nil); ran || !errors.Is(err, idempotency.ErrStepUnknown) {
		t.Errorf("after a result that cannot be recorded: ran %v, %v", ran, err)
	}
}

func TestStep_Encrypted(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	b := redisbackend.New(node.Client())
	b.NodeTimeout = 10 * time.Second // the machine may be busy
	l := longLocker(t, b)
	if _, _, err := oneStep(t, l, "plain", nil); err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(make([]byte, 32))
	must(t, err)
	aead, err := cipher.NewGCM(block)
	must(t, err)
	encrypted := idempotency.WithEncryption(idempotency.EncryptionKey{ID: "a", AEAD: aead})
	for i := range 2 {
		if got, ran, err := oneStep(t, l, "secret", nil, encrypted); got.ID != "secret" || ran != (i == 0) || err != nil {
			t.Errorf("run %d: %+v, ran %v, %v", i, got, ran, err)
		}
	}
	ctx, client, values := t.Context(), node.Client(), 0
	names, err := client.Keys(ctx, "*claimstep:*").Result()
	must(t, err)
	for _, name := range names {
		if value, err := client.Get(ctx, name).Result(); err == nil && strings.HasSuffix(name, ":secret}") {
			values++
			if strings.Contains(value, "secret") {
				t.Errorf("%s can be read: %q", name, value)
			}
		}
	}
	if values != 1 {
		t.Errorf("the steps are %q", names)
	}
	// The error names the step and its key.
	if _, ran, err := oneStep(t, l, "secret", nil); ran || err == nil ||
		!strings.Contains(err.Error(), `"secret"`) || !strings.Contains(err.Error(), "Idempotency-Key:k") {
		t.Errorf("without the key: ran %v, %v", ran, err)
	}
	if _, ran, err := oneStep(t, l, "plain", nil, encrypted); ran || err == nil {
		t.Errorf("a plain result: ran %v, %v", ran, err)
	}
	if got, ran, err := oneStep(t, l, "plain", nil, encrypted, idempotency.ReadPlain()); ran || err != nil || got.ID != "plain" {
		t.Errorf("ReadPlain: %+v, ran %v, %v", got, ran, err)
	}
}

// The longest MaxRun is longer than anything can be kept.
func TestStep_LongestMaxRun(t *testing.T) {
	t.Parallel()
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) {
		n, err := idempotency.Step(r.Context(), "charge", func(context.Context) (int, error) { return 7, nil })
		if err != nil {
			w.WriteHeader(500)
		}
		fmt.Fprint(w, n, err)
	}, idempotency.MaxRun(math.MaxInt64))
	s.order("").want(t, 200, "7 <nil>", false)
}

func TestStep_WithoutClaim(t *testing.T) {
	t.Parallel()
	_, err := idempotency.Step(t.Context(), "charge", func(context.Context) (int, error) { return 1, nil })
	if !errors.Is(err, idempotency.ErrNoClaim) {
		t.Errorf("Step: %v", err)
	}
	if _, err := idempotency.DeriveKey(t.Context(), "charge"); !errors.Is(err, idempotency.ErrNoClaim) {
		t.Errorf("DeriveKey: %v", err)
	}
}

func TestDeriveKey(t *testing.T) {
	t.Parallel()
	derive := func(l *core.Locker, name string) (key string) {
		runStep(t, l, "7 EUR", func(ctx context.Context) {
			var err error
			key, err = idempotency.DeriveKey(ctx, name)
			must(t, err)
		})
		return key
	}
	a := longLocker(t, backendtest.Memory())
	one := derive(a, "charge")
	if again := derive(a, "charge"); len(one) != 32 || again != one {
		t.Errorf("%q and %q", one, again)
	}
	b, err := core.New(backendtest.Memory(), core.WithPrefix("other:"))
	must(t, err)
	defer b.Close()
	if refund, other := derive(a, "refund"), derive(b, "charge"); refund == one || other == one {
		t.Errorf("%q, %q, %q", one, refund, other)
	}
}

// Two callers without a principal may have one key.
func TestDeriveKey_AnotherCaller(t *testing.T) {
	t.Parallel()
	keys := make(map[string]bool)
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) {
		key, err := idempotency.DeriveKey(r.Context(), "charge")
		must(t, err)
		keys[key] = true
		w.WriteHeader(http.StatusConflict) // the key is free
	})
	for _, caller := range []string{"ann", "bob", "ann"} {
		s.order("{}", "Authorization", caller)
	}
	if len(keys) != 2 {
		t.Errorf("two callers have the keys %v", keys)
	}
}

// saga books a seat: charge, seat, and the refund if there is no seat. Each effect is a Step. decide
// takes the seat.
func saga(t *testing.T, decide func(ctx context.Context, take func() bool) bool) (booked, paid int) {
	t.Helper()
	seats := 0
	h := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(longLocker(t, backendtest.Memory())),
		idempotency.Principal(anyone))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pay := func(name string, n int) {
			_, err := idempotency.Step(r.Context(), name, func(context.Context) (bool, error) {
				paid += n
				return true, nil
			})
			must(t, err)
		}
		pay("charge", 1)
		if !decide(r.Context(), func() bool { seats--; return seats >= 0 }) {
			pay("refund", -1)
			w.WriteHeader(http.StatusConflict) // sold out, and nothing is left of what was done
			return
		}
		booked++
		w.WriteHeader(http.StatusCreated)
	}))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/book", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "k")
		h.ServeHTTP(httptest.NewRecorder(), r)
		seats = 1 // somebody cancels before the retry
	}
	return booked, paid
}

// The reason of the refund is the result of a step, as the docs say. So a later run ends in the same way.
func TestStep_ReasonOfUndoIsAStep(t *testing.T) {
	t.Parallel()
	booked, paid := saga(t, func(ctx context.Context, take func() bool) bool {
		got, err := idempotency.Step(ctx, "seat", func(context.Context) (bool, error) { return take(), nil })
		must(t, err)
		return got
	})
	if booked != 0 || paid != 0 {
		t.Errorf("%d seats are booked, and %d are paid for: want none", booked, paid)
	}
}

// The first run ends between the charge and the seat. With RunAgain a retry skips the charge. Step
// alone lets nothing run again.
func TestStep_SecondRunAfterCrash(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opts []idempotency.HTTPOption
		want int
	}{
		"Step alone":        {nil, http.StatusConflict},
		"Step and RunAgain": {[]idempotency.HTTPOption{idempotency.RunAgain()}, http.StatusOK},
	} {
		charges, seats := 0, 0
		l := lockerWith(t, backendtest.Memory(), 3*time.Second) // a busy machine must not lose the claim
		h := idempotency.ByHeader("Idempotency-Key", append(tc.opts, idempotency.WithLocker(l),
			idempotency.Principal(anyone))...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := idempotency.Step(r.Context(), "charge", func(context.Context) (int, error) { charges++; return charges, nil })
			must(t, err)
			if charges == 1 && seats == 0 && r.Header.Get("X-Try") == "1" {
				panic("crash")
			}
			_, err = idempotency.Step(r.Context(), "seat", func(context.Context) (int, error) { seats++; return seats, nil })
			must(t, err)
		}))
		send := func(try string) (w *httptest.ResponseRecorder) {
			defer func() { _ = recover() }()
			r := httptest.NewRequest(http.MethodPost, "/book", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", "k")
			r.Header.Set("X-Try", try)
			w = httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		send("1")
		var w *httptest.ResponseRecorder
		for w = send("2"); w.Header().Get("Retry-After") != ""; w = send("2") { // the first one's lease has not ended
			time.Sleep(10 * time.Millisecond)
		}
		if w.Code != tc.want || charges != 1 {
			t.Errorf("%s: %d after %d charges and %d seats, want %d", name, w.Code, charges, seats, tc.want)
		}
	}
}

// TestDeriveKey_IsAnOrderNumber: payment providers without a header for keys take the key as their order number. Alipay
// takes letters, digits and "_" there, UnionPay letters and digits, and WeChat Pay 32 characters at most.
func TestDeriveKey_IsAnOrderNumber(t *testing.T) {
	t.Parallel()
	runStep(t, longLocker(t, backendtest.Memory()), "7 EUR", func(ctx context.Context) {
		for i := range 100 {
			key, err := idempotency.DeriveKey(ctx, fmt.Sprint("charge ", i))
			must(t, err)
			if len(key) != 32 {
				t.Fatalf("%q has %d characters", key, len(key))
			}
			if strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != "" {
				t.Fatalf("%q: has a character that Alipay or UnionPay does not take", key)
			}
		}
	})
}
