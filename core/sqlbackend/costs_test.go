package sqlbackend_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/sqlrelay"
)

// TestRoundTrips counts the statements of each verb. A driver that prepares them needs two round trips
// for one.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		r := &sqlrelay.Relay{Primary: db.DB}
		b := open(t, at(r.Open(t)))
		ok(t, "Ping", b.Ping(t.Context())) // it also asks which database this is, once
		var g core.Grant
		acquire := func(owner string) (err error) {
			g, err = b.Acquire(t.Context(), request("k", owner, time.Minute))
			return err
		}
		held := func() (err error) {
			taken := g
			want(t, "Acquire", acquire("b/1"), core.ErrTaken)
			g = taken
			return nil
		}
		for _, step := range []struct {
			name  string
			exact int32
			do    func() error
		}{
			{"Acquire of a new key", 3, func() error { return acquire("a/1") }},
			{"Acquire of a taken key", 1, held},
			{"Extend", 1, func() (err error) { g, err = b.Extend(t.Context(), g, time.Hour); return err }},
			{"Mint", 0, func() (err error) { g, err = b.Mint(t.Context(), g); return err }},
			{"Release", 1, func() error { return b.release(t.Context(), g) }},
			{"Acquire of a free key", 3, func() error { return acquire("a/2") }},
			{"Seal", 1, func() error { return b.Seal(t.Context(), g, []byte("v"), time.Hour) }},
			{"Inspect", 1, func() error { _, err := b.Inspect(t.Context(), "k"); return err }},
			{"Unseal", 1, func() error { return b.Unseal(t.Context(), "k") }},
			{"Ping", 1, func() error { return b.Ping(t.Context()) }},
		} {
			before := r.Statements.Load()
			ok(t, step.name, step.do())
			if n := r.Statements.Load() - before; n != step.exact {
				t.Errorf("%s: %d statements, want %d", step.name, n, step.exact)
			}
		}
	})
}
