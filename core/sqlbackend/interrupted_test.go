package sqlbackend_test

import (
	"database/sql/driver"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/sqlrelay"
)

// TestInterruptedUpdate: MariaDB may report success for an UPDATE that KILL QUERY ended before
// it changed its row. No call takes that for the change.
func TestInterruptedUpdate(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		var left atomic.Int32 // how many more are interrupted
		network := &sqlrelay.Relay{Primary: db.DB}
		network.Exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
			if strings.Contains(query, "UPDATE onelane_locks SET") && !strings.Contains(query, "SET name = name") && left.Add(-1) >= 0 {
				return driver.RowsAffected(0), nil
			}
			return run()
		}
		b := open(t, at(network.Open(t)))
		status := func() core.State {
			st, err := b.Inspect(t.Context(), "k")
			ok(t, "Inspect", err)
			return st
		}
		for _, times := range []int32{1, 100} {
			again := func(what string, err error) bool {
				t.Helper()
				left.Store(0)
				if times > 1 {
					want(t, what, err, core.ErrUnavailable)
				} else {
					ok(t, what, err)
				}
				return err == nil
			}
			interrupt := func() { left.Store(times) }
			notLonger := func(what string, g core.Grant) {
				row := status().ExpiresIn // first, as the answer may take long
				if more := time.Until(g.Deadline) - row; more > 0 {
					t.Errorf("%s, %d times: %v longer than its row", what, times, more)
				}
			}

			g, err := b.Acquire(t.Context(), request("k", "first/1", time.Minute))
			ok(t, "Acquire", err)
			interrupt()
			g, err = b.Extend(t.Context(), g, time.Hour)
			again("Extend", err)
			notLonger("Extend", g)
			interrupt()
			g, err = b.Acquire(t.Context(), request("k", "first/1", 2*time.Hour)) // its first answer was lost
			left.Store(0)
			ok(t, "Acquire again", err)
			notLonger("Acquire", g)
			interrupt()
			if !again("Seal", b.Seal(t.Context(), g, []byte("v"), time.Minute)) {
				ok(t, "Seal", b.Seal(t.Context(), g, []byte("v"), time.Minute))
			}
			interrupt()
			again("Unseal", b.Unseal(t.Context(), "k"))
			if sealed := status().Status == core.Sealed; sealed != (times > 1) {
				t.Errorf("Unseal, %d times: sealed %v", times, sealed)
			}
			ok(t, "Unseal", b.Unseal(t.Context(), "k"))

			g, err = b.Acquire(t.Context(), request("k", "second/1", time.Minute))
			ok(t, "Acquire", err)
			interrupt()
			if again("Release", b.release(t.Context(), g)) && status().Status != core.Free {
				t.Errorf("Release: the key is %v", status().Status)
			}
			left.Store(0)
			ok(t, "Unseal", b.Unseal(t.Context(), "k"))
			if st := status(); st.Status == core.Held {
				ok(t, "Release", b.release(t.Context(), g))
			}
		}
	})
}
