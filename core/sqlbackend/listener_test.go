package sqlbackend_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/internal/check"
)

// onPostgres runs fn on a database of PostgreSQL with the table.
func onPostgres(t *testing.T, fn func(t *testing.T, db *database)) {
	t.Helper()
	databases(t, func(t *testing.T, db *database) {
		if db.name == "postgres" {
			db.migrate(t)
			fn(t, db)
		}
	})
}

// tracer counts the statements with a text, and may act after each statement.
type tracer struct {
	text  string
	n     atomic.Int64
	after func(c *pgx.Conn, sql string)
}

type tracedKey struct{}

func (c *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if c.text != "" && strings.Contains(data.SQL, c.text) {
		c.n.Add(1)
	}
	return context.WithValue(ctx, tracedKey{}, data.SQL)
}

func (c *tracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(tracedKey{}).(string); c.after != nil {
		c.after(conn, sql)
	}
}

func (d *database) traced(t *testing.T, tr *tracer) *database {
	return d.reopen(t, func(_ *gomysql.Config, pg *pgx.ConnConfig) { pg.Tracer = tr })
}

// listening waits until a waiter of the key will be notified.
func listening(t *testing.T, db *database) {
	t.Helper()
	eventually(t, "somebody listens", func() bool { return query[int](t, db, "SELECT COUNT(*) FROM onelane_locks WHERE waited") == 1 })
}

// TestListener_FewQuestions counts how often a waiter asks while another process holds its key. A
// polling waiter asks every 64 ms, and then every 8 ms.
func TestListener_FewQuestions(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		asked := &tracer{text: "SELECT state"}
		holder, waiter := locker(t, at(db.DB)), locker(t, at(db.traced(t, asked).DB))
		for range 2 { // another lease is marked anew
			held, err := holder.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
			ok(t, "Acquire", err)
			got := make(chan error, 1)
			go func() {
				k, err := waiter.Acquire(t.Context(), "k", core.WithWait(time.Minute))
				if err == nil {
					err = k.Release(context.WithoutCancel(t.Context()))
				}
				got <- err
			}()
			listening(t, db)
			before, began := asked.n.Load(), time.Now()
			time.Sleep(3 * time.Second)
			// The shortest pause of a waiter that listens is half a second.
			n, most := asked.n.Load()-before, int64(time.Since(began)/(500*time.Millisecond))+2
			if n > most {
				t.Errorf("the waiter asked %d times, want %d at most", n, most)
			}
			ok(t, "Release", held.Release(t.Context()))
			ok(t, "the waiter", <-got)
		}
	})
}

// watched returns the signals for a key. They must come.
func watched(t *testing.T, b backend, key string) <-chan struct{} {
	t.Helper()
	var changed <-chan struct{}
	eventually(t, "Watch", func() bool {
		c, stop, err := b.Watch(t.Context(), key)
		t.Cleanup(stop)
		if err == nil && c == nil {
			t.Fatal("waiters poll")
		}
		changed = c
		return err == nil
	})
	return changed
}

func signaled(t *testing.T, what string, changed <-chan struct{}) (open bool) {
	t.Helper()
	select {
	case _, open = <-changed:
	case <-time.After(check.Patience):
		t.Fatalf("no signal: %s", what)
	}
	return open
}

// TestListener_Wakes: a release in another process is signaled, for each of two keys.
func TestListener_Wakes(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		holder, b := open(t, at(db.DB)), open(t, at(db.reopen(t, func(*gomysql.Config, *pgx.ConnConfig) {}).DB))
		g, err := holder.Acquire(t.Context(), request("k", "h/1", time.Hour))
		ok(t, "Acquire", err)
		_, err = holder.Acquire(t.Context(), request("other", "h/2", time.Hour))
		ok(t, "Acquire", err)
		changed, other := watched(t, b, "k"), watched(t, b, "other")
		ok(t, "Release", holder.release(t.Context(), g))
		if !signaled(t, "Release", changed) {
			t.Error("the watch ended")
		}
		select {
		case <-other:
			t.Error("a signal about another key")
		default:
		}
	})
}

// TestListener_NextLease: a waiter that asks in vain is signaled when the next lease ends, too.
func TestListener_NextLease(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		b := open(t, at(db.DB))
		first, err := b.Acquire(t.Context(), request("k", "h/1", time.Hour))
		ok(t, "Acquire", err)
		changed := watched(t, b, "k")
		ok(t, "Release", b.release(t.Context(), first))
		signaled(t, "the first Release", changed)
		second, err := b.Acquire(t.Context(), request("k", "h/2", time.Hour))
		ok(t, "Acquire", err)
		vain := request("k", "w/1", time.Hour)
		vain.Waiter, vain.Needs = "w", time.Millisecond
		_, err = b.Acquire(t.Context(), vain)
		want(t, "Acquire in vain", err, core.ErrTaken)
		ok(t, "Release", b.release(t.Context(), second))
		signaled(t, "the second Release", changed)
	})
}

// TestListener_ConnectionEnds: the waiters look for themselves, and the backend listens again.
func TestListener_ConnectionEnds(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		b := open(t, at(db.DB))
		g, err := b.Acquire(t.Context(), request("k", "h/1", time.Hour))
		ok(t, "Acquire", err)
		changed := watched(t, b, "k")
		db.exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN onelane_locks'")
		if signaled(t, "the end of the connection", changed) {
			t.Error("the watch did not end")
		}
		changed = watched(t, b, "k")
		ok(t, "Release", b.release(t.Context(), g))
		if !signaled(t, "Release", changed) {
			t.Error("the watch ended")
		}
	})
}

// TestListener_Pooler: the session that listens is another one, so nothing is heard. Waiters poll.
func TestListener_Pooler(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		deaf := db.traced(t, &tracer{after: func(c *pgx.Conn, sql string) {
			if sql == "LISTEN onelane_locks" {
				_, _ = c.Exec(context.Background(), "UNLISTEN *")
			}
		}})
		b := open(t, sqlbackend.New(deaf.DB, sqlbackend.WithTimeout(time.Second)))
		changed, _, err := b.Watch(t.Context(), "k")
		if want(t, "Watch", err, core.ErrUnavailable); changed != nil {
			t.Error("Watch trusts a connection that hears nothing")
		}
	})
}

// TestListener_OneConnection: the statements need the only connection.
func TestListener_OneConnection(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		db.SetMaxOpenConns(1)
		b := open(t, at(db.DB))
		changed, _, err := b.Watch(t.Context(), "k")
		if ok(t, "Watch", err); changed != nil {
			t.Error("the listener has the only connection")
		}
	})
}
