package claim_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

var ok, want = check.OK, check.Want

func TestMain(m *testing.M) {
	check.Parallel(4)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	check.Main(m)
}

func fp(payload string) claim.Fingerprint {
	return claim.Fingerprint{Payload: claim.Digest([]byte(payload))}
}

func fpBy(payload, who string) claim.Fingerprint {
	f := fp(payload)
	f.Credentials = claim.Digest([]byte(who))
	return f
}

func newLocker(t testing.TB, o core.Opener, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(o, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func memoryLocker(t testing.TB, opts ...core.Option) *core.Locker {
	t.Helper()
	return newLocker(t, backendtest.Memory(), opts...)
}

func lockerOn(t testing.TB, n *testutil.Node, opts ...core.Option) *core.Locker {
	t.Helper()
	return newLocker(t, redisbackend.New(n.Client()), opts...)
}

type change = func(*claim.Settings)

func newClaims(l *core.Locker, changes ...change) *claim.Claims {
	s := claim.DefaultSettings()
	for _, c := range changes {
		c(&s)
	}
	return claim.New(l, "test", s)
}

func waiting(d time.Duration) change { return func(s *claim.Settings) { s.Wait = d } }
func maxRun(d time.Duration) change  { return func(s *claim.Settings) { s.MaxRun = d } }
func keep(d time.Duration) change    { return func(s *claim.Settings) { s.Retention = d } }
func recovers(s *claim.Settings)     { s.Recovers = true }
func runAgain(s *claim.Settings)     { s.RunAgain = true }
func failOpen(s *claim.Settings)     { s.FailOpen = true }
func readPlain(s *claim.Settings)    { s.ReadPlain = true }

func ask(ctx context.Context, c *claim.Claims, key string, f claim.Fingerprint) (claim.Outcome, error) {
	return c.Begin(ctx, claim.Request{Key: key, Fingerprint: f})
}

// begin returns a new claim, which is closed at the end of the test.
func begin(t testing.TB, c *claim.Claims, key string, f claim.Fingerprint) *claim.Claim {
	t.Helper()
	return beginWith(t, t.Context(), c, key, f)
}

func beginWith(t testing.TB, ctx context.Context, c *claim.Claims, key string, f claim.Fingerprint) *claim.Claim {
	t.Helper()
	out, err := ask(ctx, c, key, f)
	if err != nil || out.Claim == nil || out.Replay != nil {
		t.Fatalf("%+v, %v; want a claim", out, err)
	}
	t.Cleanup(out.Claim.Close)
	return out.Claim
}

// complete ends a claim with an answer.
func complete(t testing.TB, k *claim.Claim, body string) {
	t.Helper()
	ok(t, "Complete", k.Complete(record(body)))
	k.Close()
}

// leave begins a request and leaves its outcome unknown.
func leave(t testing.TB, c *claim.Claims, key string, f claim.Fingerprint) {
	t.Helper()
	k := begin(t, c, key, f)
	k.LeaveUnknown()
	k.Close()
}

func free(t testing.TB, k *claim.Claim) {
	t.Helper()
	ok(t, "Free", k.Free())
	k.Close()
}

func replay(t testing.TB, c *claim.Claims, key string, f claim.Fingerprint, body string) {
	t.Helper()
	out, err := ask(t.Context(), c, key, f)
	if err != nil || out.Claim != nil || out.Replay == nil || string(out.Replay.Body) != body {
		t.Fatalf("%+v, %v; want the replay of %q", out, err, body)
	}
}

func refused(t testing.TB, c *claim.Claims, key string, f claim.Fingerprint, want error) {
	t.Helper()
	out, err := ask(t.Context(), c, key, f)
	if out != (claim.Outcome{}) || !errors.Is(err, want) {
		t.Fatalf("Begin = %+v, %v; want %v", out, err, want)
	}
}

func record(body string) *claim.Record { return &claim.Record{Status: 200, Body: []byte(body)} }

func status(t testing.TB, l *core.Locker, key string) core.Status {
	t.Helper()
	var st core.State
	var err error
	check.Eventually(t, "an answer", func() bool { // a busy machine may be too late for the first one
		st, err = l.Inspect(t.Context(), "claim:"+key)
		return !errors.Is(err, core.ErrUnavailable)
	})
	ok(t, "Inspect", err)
	return st.Status
}

// becomes waits until the key of a claim has a status.
func becomes(t testing.TB, l *core.Locker, key string, want core.Status) {
	t.Helper()
	check.Eventually(t, fmt.Sprintf("the key becomes %v", want), func() bool {
		st, err := l.Inspect(t.Context(), "claim:"+key)
		return err == nil && st.Status == want
	})
}

// onBackends runs fn with Lockers on every kind of backend. Each call of lockers makes another process's.
func onBackends(t *testing.T, fn func(t *testing.T, locker func(...core.Option) *core.Locker)) {
	t.Helper()
	redis := func(t *testing.T) core.Opener {
		b := redisbackend.New(testutil.Redis(t).Client())
		b.NodeTimeout = 10 * time.Second // the machine may be busy
		return b
	}
	for name, open := range map[string]func(t *testing.T) core.Opener{
		"memory":   func(*testing.T) core.Opener { return backendtest.Memory() },
		"Redis":    redis,
		"database": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(t *testing.T, b core.Opener) {
				fn(t, func(opts ...core.Option) *core.Locker { return newLocker(t, b, opts...) })
			}
			if open != nil {
				run(t, open(t))
				return
			}
			testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
				conns, err := db.DB()
				ok(t, "DB", err)
				ok(t, "Migrate", sqlbackend.Migrate(t.Context(), conns))
				run(t, sqlbackend.New(conns, sqlbackend.WithTimeout(time.Minute)))
			})
		})
	}
}
