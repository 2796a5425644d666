package core_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(childVar + "HOLD"); addr != "" {
		hold(addr)
	}
	goleak.VerifyTestMain(settling{m})
}

// settling gives goroutines that end by themselves the time for it: a closed go-redis client goes on with its dials to a node that is
// dead until their time-out.
type settling struct{ *testing.M }

func (m settling) Run() int {
	code := m.M.Run()
	for end := time.Now().Add(2 * dialTimeout); goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}

const dialTimeout = 5 * time.Second // go-redis' own

// locker returns a Locker on b that is closed with the test.
func locker(t testing.TB, b core.Backend, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(b, append([]core.Option{core.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

func acquire(t testing.TB, l *core.Locker, key string, opts ...core.AcquireOption) *core.Lock {
	t.Helper()
	k, err := l.Acquire(t.Context(), key, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return k
}

func want(t testing.TB, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s: got %v, want an error that matches %v", what, err, target)
	}
}

// wantEnded checks that an error says that the caller's context ended, and says nothing about the backend.
func wantEnded(t testing.TB, what string, err, over error) {
	t.Helper()
	if !errors.Is(err, over) {
		t.Errorf("%s: got %v, want an error that matches %v", what, err, over)
	}
	for _, other := range []error{core.ErrUnavailable, core.ErrLost, core.ErrSealed, core.ErrReleased} {
		if errors.Is(err, other) {
			t.Errorf("%s: %v matches %v", what, err, other)
		}
	}
}

func ok(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func status(t testing.TB, l *core.Locker, key string) core.Status {
	t.Helper()
	st, err := l.Inspect(context.Background(), key)
	ok(t, "Inspect", err)
	return st.Status
}

// eventually polls for what happens in the background; it fails after ten seconds.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: it did not happen within 10 s", what)
		}
	}
}

// spy is a Backend that counts calls, and does before each what a test asks for.
type spy struct {
	core.Backend
	mu     sync.Mutex
	calls  []string
	before map[string]func(ctx context.Context) error // by verb; an error is returned instead of the call
}

func spyOn(b core.Backend) *spy {
	return &spy{Backend: b, before: make(map[string]func(context.Context) error)}
}

func memorySpy() *spy { return spyOn(testutil.Memory()) }

func (s *spy) on(verb string, do func(ctx context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[verb] = do
}

func (s *spy) count(verb string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c == verb {
			n++
		}
	}
	return n
}

func (s *spy) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

func (s *spy) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, what)
}

func (s *spy) enter(ctx context.Context, verb string) error {
	s.note(verb)
	s.mu.Lock()
	do := s.before[verb]
	s.mu.Unlock()
	if do == nil {
		return nil
	}
	return do(ctx)
}

func (s *spy) Acquire(ctx context.Context, key, owner string, ttl time.Duration) (core.Grant, error) {
	if err := s.enter(ctx, "acquire"); err != nil {
		return core.Grant{}, err
	}
	return s.Backend.Acquire(ctx, key, owner, ttl)
}

func (s *spy) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	if err := s.enter(ctx, "extend"); err != nil {
		return g, err
	}
	return s.Backend.Extend(ctx, g, ttl)
}

func (s *spy) Release(ctx context.Context, g core.Grant) error {
	if err := s.enter(ctx, "release"); err != nil {
		return err
	}
	return s.Backend.Release(ctx, g)
}

func (s *spy) Seal(ctx context.Context, g core.Grant, token uint64, value []byte, retention time.Duration) error {
	if err := s.enter(ctx, "seal"); err != nil {
		return err
	}
	return s.Backend.Seal(ctx, g, token, value, retention)
}

func unavailable(key string) error {
	return &core.UnavailableError{Key: key, Nodes: []error{errors.New("no answer")}}
}
