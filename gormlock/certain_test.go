package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil/backendtest"
)

// breaking is a pool that fails at a place: "BEGIN", "COMMIT", or the beginning of a statement.
type breaking struct {
	*sql.DB
	at  string
	err error
}

func (b *breaking) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	if b.at == "BEGIN" {
		return nil, b.err
	}
	tx, err := b.DB.BeginTx(ctx, opts)
	return &breakingTx{tx, b}, err
}

type breakingTx struct {
	*sql.Tx
	b *breaking
}

func (t *breakingTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if t.b.at != "" && strings.HasPrefix(query, t.b.at) {
		return nil, t.b.err
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *breakingTx) Commit() error {
	if t.b.at == "COMMIT" {
		_ = t.Tx.Rollback()
		return t.b.err
	}
	return t.Tx.Commit()
}

// An error says that nothing was done only if the transaction is certainly rolled back. The error
// must also come from the guard or the database.
func TestCertain_Errors(t *testing.T) {
	t.Parallel()
	db, err := gorm.Open(sqlite.Open(filepath.Join(t.TempDir(), "undone.db")), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
	inner, err := db.DB()
	ok(t, "DB", err)
	t.Cleanup(func() { _ = inner.Close() })
	b := &breaking{DB: inner}
	db.ConnPool, db.Statement.ConnPool = b, b
	l := locker(t, backendtest.Memory())
	ok(t, "Use", db.Use(gormlock.New(l)))
	put(t, db, 42, 10)

	key := ""
	reset := &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}
	deadlock, duplicate := &gomysql.MySQLError{Number: 1213}, &pgconn.PgError{Code: "23505"}
	write := func(tx *gorm.DB) error { return take(tx, 42) }
	transaction := func(fn func(tx *gorm.DB) error) error { return gormlock.Transaction(db, key, fn) }
	other := errors.New("the provider did not answer")
	for name, c := range map[string]struct {
		at     string
		answer error
		call   func() error
		want   bool
	}{
		"BEGIN":               {"BEGIN", reset, func() error { return transaction(write) }, true},
		"BEGIN of Once":       {"BEGIN", reset, func() error { return onceNothing(db, key, write) }, true},
		"BEGIN of a block":    {"BEGIN", reset, func() error { return db.Scopes(gormlock.Guard(key)).Transaction(write) }, true},
		"BEGIN of a single":   {"BEGIN", reset, func() error { return write(db.Scopes(gormlock.Guard(key))) }, true},
		"statement":           {"UPDATE", reset, func() error { return transaction(write) }, true},
		"statement, wrapped":  {"UPDATE", reset, func() error { return transaction(wrapped(write)) }, true},
		"statement, deadlock": {"UPDATE", deadlock, func() error { return transaction(write) }, true},
		"single":              {"UPDATE", reset, func() error { return write(db.Scopes(gormlock.Guard(key))) }, true},
		"COMMIT, deadlock":    {"COMMIT", deadlock, func() error { return transaction(write) }, true},
		"block, deadlock":     {"UPDATE", deadlock, func() error { return db.Scopes(gormlock.Guard(key)).Transaction(write) }, true},
		"stale":               {"", nil, func() error { return transaction(func(*gorm.DB) error { return optimistic.ErrStale }) }, true},
		"taken": {"", nil, func() error {
			return holding(t, l, key, func() error { return gormlock.Transaction(db, key, write, gormlock.WithWait(100*time.Millisecond)) })
		}, true},

		"unknown COMMIT":       {"COMMIT", io.ErrUnexpectedEOF, func() error { return transaction(write) }, false},
		"unknown, block":       {"COMMIT", reset, func() error { return db.Scopes(gormlock.Guard(key)).Transaction(write) }, false},
		"unknown, by hand":     {"COMMIT", reset, func() error { return transaction(byHand(write, reset)) }, false},
		"committed by hand":    {"", nil, func() error { return transaction(byHand(write, optimistic.ErrStale)) }, false},
		"constraint":           {"UPDATE", duplicate, func() error { return transaction(write) }, false},
		"constraint at COMMIT": {"COMMIT", duplicate, func() error { return transaction(write) }, false},
		"fn":                   {"", nil, func() error { return transaction(func(*gorm.DB) error { return other }) }, false},
		"fn, like the answer":  {"", nil, func() error { return transaction(func(*gorm.DB) error { return reset }) }, false},
		"fn, beside it": {"UPDATE", reset, func() error {
			return transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), other) })
		}, false},
	} {
		b.at, b.err, key = c.at, c.answer, name // an unknown COMMIT keeps its key
		err := c.call()
		if err == nil || claim.NothingDone(err) != c.want {
			t.Errorf("%s: %v says that nothing was done: %v", name, err, !c.want)
		}
		if c.answer != nil && name != "committed by hand" && !errors.Is(err, c.answer) {
			t.Errorf("%s: %v does not match %v", name, err, c.answer)
		}
		b.at = ""
	}
}

// TestCertain_Lost: a transaction whose lock was lost before COMMIT is rolled back.
func TestCertain_Lost(t *testing.T) {
	t.Parallel()
	loser(t, func(t *testing.T, db *gorm.DB, l *core.Locker, lose func()) {
		err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			lose()
			<-tx.Statement.Context.Done()
			return nil
		})
		if want(t, "Transaction", err, core.ErrLost); !claim.NothingDone(err) {
			t.Errorf("%v does not say that nothing was done", err)
		}
	})
}

// TestLost_WhileBEGINWaits: the context of a transaction does not wait for what the transaction waits
// for.
func TestLost_WhileBEGINWaits(t *testing.T) {
	t.Parallel()
	loser(t, func(t *testing.T, db *gorm.DB, _ *core.Locker, lose func()) {
		var ctx context.Context
		gormlock.OnBegin(db, func() {
			lose()
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
				t.Error("the lock is lost, and the context goes on")
			}
		})
		want(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			ctx = tx.Statement.Context
			return take(tx, 42)
		}), core.ErrLost)
	})
}

func onceNothing(db *gorm.DB, key string, fn func(tx *gorm.DB) error) error {
	_, err := gormlock.Once(context.Background(), db, key, func(tx *gorm.DB) (int, error) { return 0, fn(tx) })
	return err
}

func wrapped(fn func(tx *gorm.DB) error) func(tx *gorm.DB) error {
	return func(tx *gorm.DB) error { return fmt.Errorf("selling: %w", fn(tx)) }
}

// byHand commits in the middle of a transaction and returns err.
func byHand(fn func(tx *gorm.DB) error, err error) func(tx *gorm.DB) error {
	return func(tx *gorm.DB) error {
		_ = fn(tx.Session(&gorm.Session{}))
		_ = tx.Session(&gorm.Session{}).Commit()
		return err
	}
}

func holding(t *testing.T, l *core.Locker, key string, fn func() error) error {
	t.Helper()
	k, err := l.Acquire(t.Context(), key)
	ok(t, "Acquire", err)
	defer func() { ok(t, "Release", k.Release(context.Background())) }()
	return fn()
}
