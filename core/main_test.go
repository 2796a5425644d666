package core_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
	"github.com/redis/go-redis/v9/logging"
)

var ok, want, wantEnded, acquire = check.OK, check.Want, check.Ended, check.Acquire

var long, race = check.Long, check.Race

func TestMain(m *testing.M) {
	logging.Disable()                              // go-redis reports faults that tests make
	slog.SetDefault(slog.New(slog.DiscardHandler)) // examples have no logger of their own
	check.Main(m)
}

// opener makes a core.Opener of a Backend.
type opener struct{ backend core.Backend }

func (o opener) Open(core.Environment) (core.Backend, error) { return o.backend, nil }

// locker returns a Locker on b, a core.Opener or a core.Sealer. It is closed with the test.
func locker(t testing.TB, b any, opts ...core.Option) *core.Locker {
	t.Helper()
	o, isOpener := b.(core.Opener)
	if !isOpener {
		o = opener{b.(core.Backend)}
	}
	return check.Locker(t, o, opts...)
}

func adopt(t testing.TB, l *core.Locker, orphan *core.OrphanedError, opts ...core.AcquireOption) *core.Lock {
	t.Helper()
	k, err := l.Adopt(t.Context(), orphan, opts...)
	if err != nil {
		t.Fatalf("Adopt(%q): %v", orphan.Key, err)
	}
	return k
}

// token returns the lock's fencing token.
func token(t testing.TB, k *core.Lock) uint64 {
	t.Helper()
	n, err := k.Token(context.Background())
	ok(t, "Token", err)
	return n
}

func status(t testing.TB, l *core.Locker, key string) core.Status {
	t.Helper()
	st, err := l.Inspect(context.Background(), key)
	ok(t, "Inspect", err)
	return st.Status
}

// spy is a Backend that counts calls and does before each what a test asks for.
type spy struct {
	core.Sealer
	mu     sync.Mutex
	calls  []string
	before map[string]func(ctx context.Context) error // by verb; an error is returned instead of the call
	others int                                        // what Release reports, if it is not 0
}

func spyOn(b core.Sealer) *spy {
	return &spy{Sealer: b, before: make(map[string]func(context.Context) error)}
}

func memorySpy() *spy { return spyOn(backendtest.Memory()) }

// Open makes the spy a core.Opener.
func (s *spy) Open(core.Environment) (core.Backend, error) { return s, nil }

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

func (s *spy) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if err := s.enter(ctx, "acquire"); err != nil {
		return core.Grant{}, err
	}
	return s.Sealer.Acquire(ctx, r)
}

func (s *spy) Mint(ctx context.Context, g core.Grant) (core.Grant, error) {
	if err := s.enter(ctx, "mint"); err != nil {
		return g, err
	}
	return s.Sealer.Mint(ctx, g)
}

func (s *spy) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	if err := s.enter(ctx, "extend"); err != nil {
		return g, err
	}
	return s.Sealer.Extend(ctx, g, ttl)
}

func (s *spy) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	if err := s.enter(ctx, "release"); err != nil {
		return core.Waiters{Others: -1}, err
	}
	others, err := s.Sealer.Release(ctx, g)
	if s.others != 0 {
		others = core.Waiters{Others: s.others, Need: 50 * time.Millisecond}
	}
	return others, err
}

func (s *spy) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	if err := s.enter(ctx, "seal"); err != nil {
		return err
	}
	return s.Sealer.Seal(ctx, g, value, retention)
}

func (s *spy) Ping(ctx context.Context) error {
	if err := s.enter(ctx, "ping"); err != nil {
		return err
	}
	return s.Sealer.Ping(ctx)
}

// polling is a Backend whose waiters poll.
type polling struct{ core.Sealer }

func (b polling) Watch(context.Context, string) (<-chan struct{}, func(), error) {
	return nil, func() {}, nil
}

func (b polling) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	_, err := b.Sealer.Release(ctx, g)
	return core.Waiters{Others: -1}, err
}

func unavailable(key string) error {
	return &core.UnavailableError{Key: key, Nodes: []error{errors.New("no answer")}}
}
