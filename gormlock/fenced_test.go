package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// numbered is a backend that grants every request, with a token that the test chooses. A Redis does
// the same after it lost its data, or after another Redis was promoted in its place.
type numbered struct {
	core.Sealer
	token uint64
}

// Open implements core.Opener.
func (n *numbered) Open(core.Environment) (core.Backend, error) { return n, nil }

func (n *numbered) Acquire(_ context.Context, r core.Request) (core.Grant, error) {
	return core.Grant{Key: r.Key, Owner: r.Owner, Token: n.token, Tokens: 1, Deadline: time.Now().Add(r.TTL)}, nil
}

func (n *numbered) Extend(_ context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	g.Deadline = time.Now().Add(ttl)
	return g, nil
}

func (n *numbered) Release(context.Context, core.Grant) (core.Waiters, error) {
	return core.Waiters{}, nil
}

// reopen is another gorm.DB on the connections of db, so that it can have its own plugin.
func reopen(t testing.TB, db *gorm.DB) *gorm.DB {
	t.Helper()
	_, prepared := db.ConnPool.(*gorm.PreparedStmtDB)
	again, err := gorm.Open(db.Dialector, &gorm.Config{Logger: logger.Discard, PrepareStmt: prepared})
	ok(t, "Open", err)
	return again
}

// holder is a gorm.DB whose locks all have one token, and are never lost.
func holder(t testing.TB, db *gorm.DB, token uint64, opts ...gormlock.Option) *gorm.DB {
	t.Helper()
	own := reopen(t, db)
	ok(t, "Use", own.Use(gormlock.New(locker(t, &numbered{backendtest.Memory(), token}), opts...)))
	return own
}

// fencedForms are the ways to be fenced. The last two need Fenced as the plugin's default.
var fencedForms = map[string]func(ctx context.Context, db *gorm.DB) error{
	"guard, single": func(ctx context.Context, db *gorm.DB) error {
		return take(db.Scopes(gormlock.Guard("k", gormlock.Fenced())), 42)
	},
	"guard, block": func(ctx context.Context, db *gorm.DB) error {
		return db.Scopes(gormlock.Guard("k", gormlock.Fenced())).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
	},
	"Transaction": func(ctx context.Context, db *gorm.DB) error {
		return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return take(tx, 42) }, gormlock.Fenced())
	},
	"Once": func(ctx context.Context, db *gorm.DB) error {
		_, err := gormlock.Once(ctx, db, "k", func(tx *gorm.DB) (int, error) { return 0, take(tx, 42) }, gormlock.Fenced())
		return errors.Join(err, db.Exec("DELETE FROM onelane_once").Error) // so that the next one runs
	},
	"one of two": func(ctx context.Context, db *gorm.DB) error {
		return take(db.Scopes(gormlock.Guard("k"), gormlock.Guard("other", gormlock.Fenced())), 42)
	},
	"by hand": func(ctx context.Context, db *gorm.DB) error {
		tx := db.Scopes(gormlock.Guard("k", gormlock.Fenced())).Begin()
		return errors.Join(take(tx, 42), tx.Commit().Error)
	},
	"plugin, single": func(ctx context.Context, db *gorm.DB) error { return take(db.Scopes(gormlock.Guard("k")), 42) },
	"plugin, WithGuard": func(ctx context.Context, db *gorm.DB) error {
		return db.WithContext(gormlock.WithGuard(ctx, "k")).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
	},
}

// TestFenced_RefusesOlderHolders is invariant I2: a token registers only if it is larger than all
// before it, whatever the lock says. The same number of another holder does not register.
func TestFenced_RefusesOlderHolders(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 100)
		n, token := int64(100), uint64(1<<40)
		for name, form := range fencedForms {
			var opts []gormlock.Option
			if strings.HasPrefix(name, "plugin") {
				opts = append(opts, gormlock.Fenced())
			}
			token += 10
			ok(t, name, form(t.Context(), holder(t, db, token, opts...)))
			n--
			for what, refused := range map[string]uint64{"older": token - 1, "same number": token} {
				err := form(t.Context(), holder(t, db, refused, opts...))
				want(t, name+", "+what, err, gormlock.ErrFenced)
				want(t, name+", "+what, err, core.ErrLost)
				if name != "one of two" && !strings.Contains(err.Error(), `"k"`) {
					t.Errorf("%s: %v does not name the key", name, err)
				}
			}
			wantLeft(t, db, 42, n)
			ok(t, name+", newer", form(t.Context(), holder(t, db, token+1, opts...)))
			n--
			wantLeft(t, db, 42, n)
		}
		wantOpen(t, db, 0)
	})
}

func wantOpen(t testing.TB, db *gorm.DB, n int) {
	t.Helper()
	if got := inUse(t, db); got != n {
		t.Fatalf("%d connections are in use, want %d", got, n)
	}
}

// TestFenced_NewSource: tokens come from a new source whose clock is behind. The statement is that of
// docs/operations.md.
func TestFenced_NewSource(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		fenced := func(token uint64) error {
			return take(holder(t, db, token).Scopes(gormlock.Guard("k", gormlock.Fenced())), 42)
		}
		ok(t, "the old source", fenced(1000))
		want(t, "the new source", fenced(5), gormlock.ErrFenced)
		where := "name = 'k'"
		if db.Name() == "sqlite" {
			where = "name = CAST('k' AS BLOB)"
		}
		forgotten := db.Exec("DELETE FROM onelane_fences WHERE " + where)
		ok(t, "DELETE", forgotten.Error)
		if forgotten.RowsAffected != 1 {
			t.Fatalf("DELETE removed %d fences", forgotten.RowsAffected)
		}
		ok(t, "the new source", fenced(5))
		want(t, "an older holder", fenced(4), gormlock.ErrFenced)
		ok(t, "the next holder", fenced(6))
		wantLeft(t, db, 42, 7)
	})
}

// TestFenced_SeveralTransactionsUnderOneLock: the same token of the same owner passes.
func TestFenced_SeveralTransactionsUnderOneLock(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		for range 2 { // the second holder has a larger token
			ok(t, "Do", l.Do(t.Context(), "k", func(ctx context.Context) error {
				for range 2 {
					ok(t, "take", take(db.WithContext(ctx).Scopes(gormlock.Guard("k", gormlock.Fenced())), 42))
				}
				return gormlock.Transaction(db.WithContext(ctx), "k", func(tx *gorm.DB) error { return take(tx, 42) }, gormlock.Fenced())
			}))
		}
		wantLeft(t, db, 42, 4)
	})
}

// TestFenced_FirstStatement: the token registers before the transaction reads. A fence that is
// written last lets an update be lost. The older holder reads, the newer one reads, the older one
// writes, and so does the newer.
func TestFenced_FirstStatement(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		levels := []sql.IsolationLevel{sql.LevelDefault, sql.LevelRepeatableRead}
		if db.Name() == "sqlite" {
			levels = levels[:1]
		}
		token, n := uint64(1<<40), int64(10)
		for _, level := range levels {
			opts := &sql.TxOptions{Isolation: level}
			begin := func(token uint64, wait time.Duration) *gorm.DB {
				tx := holder(t, db, token).Scopes(gormlock.Guard("k", gormlock.Fenced(), gormlock.WithWait(wait))).Begin(opts)
				ok(t, "Begin", tx.Error)
				return tx.Session(&gorm.Session{})
			}
			token += 10

			// The older one comes while the newer is open, and after it.
			newer, older := begin(token+1, time.Minute), begin(token, time.Second)
			var s Stock
			ok(t, "the newer reads", newer.Take(&s, "sku = 42").Error)
			if db.Name() != "sqlite" { // where BEGIN IMMEDIATE waits for all other transactions
				want(t, "the older beside it", older.Take(&Stock{}, "sku = 42").Error, core.ErrTaken)
			}
			ok(t, "the newer writes", newer.Model(&Stock{}).Where("sku = 42").Update("left", s.Left-1).Error)
			ok(t, "Commit", newer.Commit().Error)
			n--
			want(t, "after it", begin(token, time.Minute).Take(&Stock{}, "sku = 42").Error, gormlock.ErrFenced)

			// The older one registers first: the newer waits for its end, and reads what it wrote.
			older, newer = begin(token+2, time.Minute), begin(token+3, time.Minute)
			ok(t, "the older reads", older.Take(&s, "sku = 42").Error)
			read := make(chan error)
			var after Stock
			go func() { read <- newer.Take(&after, "sku = 42").Error }()
			select {
			case err := <-read:
				t.Fatalf("%v: the newer did not wait: %v", level, err)
			case <-time.After(50 * time.Millisecond):
			}
			ok(t, "the older writes", older.Model(&Stock{}).Where("sku = 42").Update("left", s.Left-1).Error)
			ok(t, "Commit", older.Commit().Error)
			n--
			ok(t, "the newer reads", <-read)
			if after.Left != n {
				t.Fatalf("%v: the newer read %d, want %d", level, after.Left, n)
			}
			ok(t, "the newer writes", newer.Model(&Stock{}).Where("sku = 42").Update("left", after.Left-1).Error)
			ok(t, "Commit", newer.Commit().Error)
			n--
			wantLeft(t, db, 42, n)
		}
	})
}

// TestFenced_Refusals is what cannot be fenced.
func TestFenced_Refusals(t *testing.T) {
	t.Parallel()
	fenced := gormlock.Guard("k", gormlock.Fenced(), gormlock.WithWait(200*time.Millisecond))
	patient := gormlock.Guard("k", gormlock.Fenced(), gormlock.WithWait(time.Minute))
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		busySoon(t, db)
		put(t, db, 42, 10)
		err := take(db.Scopes(patient), 42)
		if err == nil || !strings.Contains(err.Error(), "gormlock.Migrate") {
			t.Fatalf("without the table: got %v, want an error that says what makes it", err)
		}
		ok(t, "Migrate", gormlock.Migrate(db))

		tx := db.Scopes(gormlock.Guard("k")).Begin()
		ok(t, "take", take(tx, 42))
		want(t, "a fence after BEGIN", take(tx.Session(&gorm.Session{}).Scopes(patient), 42), gormlock.ErrGuardTooLate)
		ok(t, "Commit", tx.Commit().Error)

		err = db.Scopes(patient).Transaction(func(tx *gorm.DB) error { return tx.Find(&[]Stock{}).Error }, &sql.TxOptions{ReadOnly: true})
		want(t, "read-only", err, gorm.ErrInvalidTransaction)

		// An earlier holder's transaction stays open: nobody waits for it longer than WithWait.
		open := holder(t, db, 1).Scopes(patient).Begin()
		ok(t, "take", take(open, 42))
		start := time.Now()
		err = take(db.Scopes(fenced), 42)
		if db.Name() != "sqlite" || err == nil { // there BEGIN fails already
			want(t, "the fence is held", err, core.ErrTaken)
		}
		if waited := time.Since(start); waited > 10*time.Second {
			t.Errorf("it waited %v", waited)
		}
		ok(t, "Rollback", open.Rollback().Error)
		ok(t, "take", take(db.Scopes(patient), 42))
		wantLeft(t, db, 42, 8)
		wantIdle(t, db, l, "k")
	})
}

// TestFenced_WaitForTheFenceEnds: with the context, and with the lock, however long the guard would wait.
func TestFenced_WaitForTheFenceEnds(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // where BEGIN waits, and not for a fence
			return
		}
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		fenced := gormlock.Guard("k", gormlock.Fenced(), gormlock.WithWait(time.Minute))
		open := holder(t, db, 1).Scopes(fenced).Begin()
		ok(t, "take", take(open, 42))
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		want(t, "the context ends", take(holder(t, db, 2).WithContext(ctx).Scopes(fenced), 42), context.DeadlineExceeded)
		short := reopen(t, db)
		ok(t, "Use", short.Use(gormlock.New(locker(t, backendtest.Memory(), core.WithTTL(300*time.Millisecond), core.WithMaxHold(0)))))
		want(t, "the lock is lost", take(short.Scopes(fenced), 42), core.ErrLost)
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
		ok(t, "Commit", open.Commit().Error)
		wantLeft(t, db, 42, 9)
	})
}

// TestFenced_KeysAreBinary: keys that a collation takes for one have a fence each.
func TestFenced_KeysAreBinary(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		for i, key := range []string{"k", "K", "k ", "ｋ", "k\u00e9", "ke\u0301", "锁", "k'\"\\`;--?"} {
			ok(t, key, gormlock.Transaction(holder(t, db, uint64(100-i)), key, func(tx *gorm.DB) error { return take(tx, 42) }, gormlock.Fenced()))
		}
		wantLeft(t, db, 42, 2)
	})
}

// busySoon lets SQLite give up a wait for its file after 0.2 s.
func busySoon(t *testing.T, db *gorm.DB) {
	t.Helper()
	if db.Name() != "sqlite" {
		return
	}
	conns := pool(t, db)
	conns.SetMaxIdleConns(4)
	conns.SetMaxOpenConns(4)
	var all []*sql.Conn
	for range 4 { // all that there will be
		conn, err := conns.Conn(t.Context())
		ok(t, "Conn", err)
		all = append(all, conn)
		_, err = conn.ExecContext(t.Context(), "PRAGMA busy_timeout = 200")
		ok(t, "PRAGMA", err)
	}
	for _, conn := range all {
		ok(t, "Close", conn.Close())
	}
}
