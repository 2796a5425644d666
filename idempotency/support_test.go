package idempotency_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// A handler dies after it charged, inside a step. The operator finds the key by caller and key,
// answers it, and every retry gets that answer. Another payload does not.
func TestSupport_Answer(t *testing.T) {
	t.Parallel()
	block, err := aes.NewCipher(make([]byte, 32))
	must(t, err)
	aead, err := cipher.NewGCM(block)
	must(t, err)
	for name, opts := range map[string][]idempotency.Option{
		"plain":     {idempotency.Service("shop")},
		"encrypted": {idempotency.WithEncryption(idempotency.EncryptionKey{ID: "2026", AEAD: aead})},
		"again":     {idempotency.RunAgain()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := testutil.Locker(t)
			http1 := []idempotency.HTTPOption{idempotency.Principal(byUser)}
			for _, o := range opts {
				http1 = append(http1, o)
			}
			runs := 0
			s := orders(t, l, func(_ http.ResponseWriter, r *http.Request) {
				runs++
				_, _ = idempotency.Step(r.Context(), "charge", func(context.Context) (int, error) { panic("died") })
			}, http1...)
			send := func(body string) answer {
				return s.post(t.Context(), "/orders/7", strings.NewReader(body), "X-User", "ann:x", "Idempotency-Key", "k", "X-Request-Id", "r1")
			}
			send("7 EUR")
			sup := &idempotency.Support{Locker: l, Options: opts}
			key := sup.Key("ann:x", "Idempotency-Key", "k")
			found, err := sup.Find(t.Context(), key)
			must(t, err)
			if found.Status != core.Orphaned || found.Run.RequestID != "r1" || found.Run.Begun.IsZero() || found.Payload == "" ||
				found.Encrypted != "" || found.RunAgain != (name == "again") {
				t.Errorf("found %+v", found)
			}
			if name == "encrypted" {
				blind := &idempotency.Support{Locker: l}
				f, err := blind.Find(t.Context(), key)
				if err != nil || f.Encrypted != "2026" || f.Payload != "" {
					t.Errorf("without its key there is %+v, %v", f, err)
				}
				if err := blind.Answer(t.Context(), key, 201, nil, nil); err == nil {
					t.Error("a claim was answered without its key")
				}
			}
			for _, wrong := range []int{-1, 0, 199, 1000} {
				if err := sup.Answer(t.Context(), key, wrong, nil, []byte{}); err == nil {
					t.Errorf("status %d was recorded", wrong)
				}
			}
			must(t, sup.Answer(t.Context(), key, 201, http.Header{"Content-Type": {"text/plain"}}, []byte("order 7")))
			a := send("7 EUR")
			a.want(t, 201, "order 7", true)
			if a.header.Get("Content-Type") != "text/plain" || a.header.Get("Idempotency-Original-Request") != "r1" {
				t.Errorf("the replay has %v", a.header)
			}
			send("8 EUR").refused(t, idempotency.CodeKeyReused)
			if runs != 1 {
				t.Errorf("%d runs", runs)
			}
			if err := sup.Answer(t.Context(), key, 500, nil, nil); !errors.Is(err, idempotency.ErrKnown) {
				t.Errorf("a second answer: %v", err)
			}
			if found, err = sup.Find(t.Context(), key); err != nil || found.Answer != 201 || found.Status != core.Sealed {
				t.Errorf("found %+v, %v", found, err)
			}
		})
	}
}

// The operator of a function of Do answers with its result, and one of a step lets the next run skip
// it.
func TestSupport_Results(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	sup := &idempotency.Support{Locker: l}
	call := func(fn func(context.Context) (int, error)) (int, error) {
		return idempotency.Do(t.Context(), l, "pay:7", fn, idempotency.Retain(time.Hour), idempotency.RunAgain())
	}
	charge := func(ctx context.Context) (int, error) {
		return idempotency.Step(ctx, "charge", func(context.Context) (int, error) { return 0, errors.New("no answer") })
	}
	if _, err := call(charge); err == nil {
		t.Fatal("the step did not fail")
	}
	step := "claimstep:" + sup.Key("", "@do")[len("claim:"):] + ":pay:7:charge"
	for _, body := range [][]byte{nil, []byte("{")} {
		if err := sup.Answer(t.Context(), step, 0, nil, body); err == nil {
			t.Errorf("%q is the result of a step", body)
		}
	}
	must(t, sup.Answer(t.Context(), step, 0, nil, []byte("42")))
	if got, err := call(charge); got != 42 || err != nil {
		t.Errorf("the run after the answer of its step returned %d, %v", got, err)
	}

	_, err := idempotency.Do(t.Context(), l, "mail:7", func(context.Context) (int, error) { return 0, errors.New("no answer") }, idempotency.Retain(time.Hour))
	if !errors.Is(err, idempotency.ErrUnknown) {
		t.Fatal(err)
	}
	key := sup.Key("", "@do") + ":mail:7"
	if err := sup.Answer(t.Context(), key, 201, nil, []byte("1")); err == nil {
		t.Error("a function has no status")
	}
	must(t, sup.Answer(t.Context(), key, 0, nil, []byte("7")))
	got, err := idempotency.Do(t.Context(), l, "mail:7", func(context.Context) (int, error) { panic("run again") }, idempotency.Retain(time.Hour))
	if got != 7 || err != nil {
		t.Errorf("Do returned %d, %v", got, err)
	}
}

// Every backend that keeps records takes the answer of an operator.
func TestSupport_Backends(t *testing.T) {
	t.Parallel()
	sealers(t, func(t *testing.T, b core.Opener) {
		l := check.Locker(t, b)
		call := func(fn func(context.Context) (int, error)) (int, error) {
			return idempotency.Do(t.Context(), l, "mail:7", fn, idempotency.Retain(time.Hour))
		}
		if _, err := call(func(context.Context) (int, error) { return 0, errors.New("no answer") }); !errors.Is(err, idempotency.ErrUnknown) {
			t.Fatal(err)
		}
		sup := &idempotency.Support{Locker: l}
		key := sup.Key("", "@do") + ":mail:7"
		if found, err := sup.Find(t.Context(), key); err != nil || found.Status != core.Orphaned || found.Run.Begun.IsZero() {
			t.Errorf("found %+v, %v", found, err)
		}
		must(t, sup.Answer(t.Context(), key, 0, nil, []byte("7")))
		if got, err := call(func(context.Context) (int, error) { panic("run again") }); got != 7 || err != nil {
			t.Errorf("Do returned %d, %v", got, err)
		}
		if err := sup.Answer(t.Context(), key, 0, nil, []byte("8")); !errors.Is(err, idempotency.ErrKnown) {
			t.Errorf("a second answer: %v", err)
		}
	})
}

// A known outcome stays as it is, and one that cannot be answered is refused.
func TestSupport_NotUnknown(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	sup := &idempotency.Support{Locker: l}
	key := sup.Key("ann", "Idempotency-Key", "k")
	answer := func(key string) error { return sup.Answer(t.Context(), key, 201, nil, []byte("x")) }
	if err := answer(key); !errors.Is(err, idempotency.ErrKnown) {
		t.Errorf("a free key: %v", err)
	}
	if f, err := sup.Find(t.Context(), key); err != nil || f.Status != core.Free {
		t.Errorf("a free key is %+v, %v", f, err)
	}
	held, err := l.Acquire(t.Context(), key, core.WithOrphan(time.Hour))
	must(t, err)
	if err := answer(key); !errors.Is(err, idempotency.ErrKnown) {
		t.Errorf("a held key: %v", err)
	}
	must(t, held.Orphan(t.Context()))
	if err := answer(key); err == nil || errors.Is(err, idempotency.ErrKnown) {
		t.Errorf("a mark that nobody can read: %v", err)
	}
	for _, key := range []string{"stock:7", sup.Key("ann", "grpc", "metadata idempotency-key", "k"), sup.Key("ann", "POST", "repeats", "1m0s", "", "0")} {
		if err := answer(key); err == nil || errors.Is(err, idempotency.ErrKnown) {
			t.Errorf("%s was answered: %v", key, err)
		}
	}
	if err := sup.Answer(t.Context(), sup.Key("ann", "Idempotency-Key", "repeats"), 201, nil, nil); !errors.Is(err, idempotency.ErrKnown) {
		t.Errorf("a client's key: %v", err)
	}
	if _, err := new(idempotency.Support).Find(t.Context(), key); err == nil {
		t.Error("there is no Locker")
	}
}

// Retries learn that the run is over, and that its answer was not kept.
func TestSupport_NotKept(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := orders(t, l, func(http.ResponseWriter, *http.Request) { panic("died") }, idempotency.Principal(byUser))
	s.order("k", "X-User", "ann", "Idempotency-Key", "k")
	sup := &idempotency.Support{Locker: l}
	key := sup.Key("ann", "Idempotency-Key", "k")
	must(t, sup.Answer(t.Context(), key, 0, nil, nil))
	s.order("k", "X-User", "ann", "Idempotency-Key", "k").refused(t, idempotency.CodeResponseNotKept)
}

// The handler gave up. The line that an operator sees has the key that Support and onelanectl take.
func TestSupport_KeyOfTheLog(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"k", strings.Repeat("x", 255)} {
		var mu sync.Mutex
		var log bytes.Buffer
		logger := slog.New(slog.NewJSONHandler(writerFunc(func(b []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return log.Write(b)
		}), nil))
		l := testutil.Locker(t, core.WithLogger(logger))
		s := orders(t, l, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			idempotency.Principal(func(*http.Request) string { return strings.Repeat("ann:", 80) }), idempotency.MaxRun(time.Millisecond))
		s.order("", "Idempotency-Key", client).refused(t, idempotency.CodeOutcomeUnknown)
		var line struct{ Msg, Key string }
		mu.Lock()
		for text := range strings.Lines(log.String()) {
			must(t, json.Unmarshal([]byte(text), &line))
			if strings.Contains(line.Msg, "before it answered") {
				break
			}
		}
		mu.Unlock()
		f, err := (&idempotency.Support{Locker: l}).Find(t.Context(), line.Key)
		if err != nil || f.Status == core.Free || f.Payload == "" {
			t.Errorf("the log says %q: %+v, %v", line.Key, f, err)
		}
	}
}
