package gormlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestCommitUnknown cuts the connection before and after COMMIT is done. Both look the same to the
// driver, so the error is ErrCommitUnknown and the key stays locked.
func TestCommitUnknown(t *testing.T) {
	t.Parallel()
	forms := map[string]func(t *testing.T, db *gorm.DB, key string) error{
		"single": func(t *testing.T, db *gorm.DB, key string) error { return take(db.Scopes(gormlock.Guard(key)), 42) },
		"block": func(t *testing.T, db *gorm.DB, key string) error {
			return db.Scopes(gormlock.Guard(key)).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
		},
		"Transaction": func(t *testing.T, db *gorm.DB, key string) error {
			return gormlock.Transaction(db, key, func(tx *gorm.DB) error { return take(tx, 42) })
		},
		"by hand": func(t *testing.T, db *gorm.DB, key string) error {
			tx := db.Scopes(gormlock.Guard(key)).Begin()
			ok(t, "take", take(tx, 42))
			_ = tx.Commit()
			return tx.Rollback().Error
		},
	}
	each(t, func(t *testing.T, db *gorm.DB) {
		proxied, p := behindProxy(t, db)
		if p == nil {
			return
		}
		l := locker(t, backendtest.Memory(), core.WithTTL(time.Minute))
		ok(t, "Use", proxied.Use(gormlock.New(l)))
		put(t, db, 42, 10)
		n := int64(10)
		for _, cut := range []int32{cutBefore, cutAfter} {
			for name, form := range forms {
				key := fmt.Sprint(name, " ", cut)
				ok(t, "take", take(proxied.Scopes(gormlock.Guard(key)), 42)) // the connection works
				n--
				p.do.Store(cut)
				err := form(t, proxied, key)
				p.do.Store(pass)
				want(t, name, err, gormlock.ErrCommitUnknown)
				st, err := l.Inspect(t.Context(), key)
				ok(t, "Inspect", err)
				if st.Status != core.Held {
					t.Fatalf("%s: the key is %v although the outcome is unknown", name, st.Status)
				}
				if cut == cutAfter {
					n--
				}
				wantLeft(t, db, 42, n)
			}
			ok(t, "Update", db.Model(&Stock{}).Where("sku = ?", 42).Update("left", 10).Error)
			n = 10
		}
	})
}

// TestCommitUnknown_ErrorOfAProxy: a proxy answers COMMIT with its own error, and may or may not
// have forwarded it. The driver sees the same error, so the outcome is unknown and the key stays
// locked.
func TestCommitUnknown_ErrorOfAProxy(t *testing.T) {
	t.Parallel()
	failures := map[string]map[string][]byte{
		"mysql": {"1105": mysqlFailure(1105), "2013": mysqlFailure(2013), "9001": mysqlFailure(9001)},
		"postgres": {
			"58000": postgresFailure("58000"), "08P01": postgresFailure("08P01"), "53300": postgresFailure("53300"),
		},
	}
	each(t, func(t *testing.T, db *gorm.DB) {
		proxied, p := behindProxy(t, db)
		if p == nil {
			return
		}
		l := locker(t, backendtest.Memory(), core.WithTTL(time.Minute))
		ok(t, "Use", proxied.Use(gormlock.New(l)))
		put(t, db, 42, 10)
		n := int64(10)
		for code, failure := range failures[db.Name()] {
			for _, do := range []int32{replace, refuse} {
				key := fmt.Sprint(code, ":", do)
				err := gormlock.Transaction(proxied, key, func(tx *gorm.DB) error {
					ok(t, "take", take(tx, 42))
					p.failure.Store(failure)
					p.do.Store(do)
					return nil
				})
				p.do.Store(pass)
				want(t, key, says(err, code, err), gormlock.ErrCommitUnknown)
				if !held(t, l, key) {
					t.Errorf("%s: the key is free although the outcome is unknown", key)
				}
				if do == replace {
					n--
				}
				eventually(t, "the server ends the transaction", func() bool { return left(t, db, 42) == n })
				eventually(t, "the next one gets another connection", func() bool {
					return gormlock.Transaction(proxied, "next", func(tx *gorm.DB) error { return take(tx, 42) }) == nil
				})
				n--
				wantLeft(t, db, 42, n)
			}
		}
	})
}

// TestCommitUnknown_ContextEndsInside: with pgx, a context that ends during COMMIT
// interrupts it.
func TestCommitUnknown_ContextEndsInside(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		proxied, p := behindProxy(t, db)
		if db.Name() != "postgres" {
			return
		}
		l := locker(t, backendtest.Memory(), core.WithTTL(time.Minute))
		ok(t, "Use", proxied.Use(gormlock.New(l)))
		put(t, db, 42, 10)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var ended sync.WaitGroup
		err := proxied.WithContext(ctx).Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			p.do.Store(swallow)
			ended.Go(func() {
				defer cancel()
				eventually(t, "COMMIT is done, and its answer is kept", func() bool { return left(t, db, 42) == 9 })
			})
			return nil
		})
		ended.Wait()
		want(t, "Transaction", err, gormlock.ErrCommitUnknown)
		want(t, "Transaction", err, context.Canceled)
		if !held(t, l, "k") {
			t.Error("the key is free although the outcome is unknown")
		}
		wantLeft(t, db, 42, 9)
	})
}

// TestCommitRejected_DeferredConstraint: the server rejects COMMIT, so the transaction is
// rolled back and the key is free.
func TestCommitRejected_DeferredConstraint(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() == "mysql" {
			return // which has no deferred constraints
		}
		if db.Name() == "sqlite" {
			pool(t, db).SetMaxOpenConns(1)
			ok(t, "PRAGMA", db.Exec("PRAGMA foreign_keys = 1").Error)
		}
		put(t, db, 42, 10)
		ok(t, "CREATE", db.Exec("CREATE TABLE parts (id int PRIMARY KEY, stock_id bigint REFERENCES stocks (id) DEFERRABLE INITIALLY DEFERRED)").Error)
		guard := gormlock.Guard("k")
		fails := map[string]func() error{
			"single": func() error { return db.Scopes(guard).Exec("INSERT INTO parts VALUES (1, 999)").Error },
			"block": func() error {
				return db.Scopes(guard).Transaction(func(tx *gorm.DB) error { return tx.Exec("INSERT INTO parts VALUES (1, 999)").Error })
			},
			"connection": func() error {
				return db.Connection(func(tx *gorm.DB) error { return tx.Scopes(guard).Exec("INSERT INTO parts VALUES (1, 999)").Error })
			},
		}
		for name, fail := range fails {
			if err := fail(); err == nil || errors.Is(err, gormlock.ErrCommitUnknown) {
				t.Fatalf("%s: got %v, want the database's error", name, err)
			}
			wantIdle(t, db, l, "k")
			var n int64
			ok(t, "Count", db.Table("parts").Count(&n).Error)
			if n != 0 {
				t.Fatalf("%s: %d rows", name, n)
			}
			ok(t, "the connection is good for the next", take(db.Scopes(guard), 42))
		}
		wantLeft(t, db, 42, 7)

		tx := db.Begin()
		ok(t, "Exec", tx.Scopes(guard).Exec("INSERT INTO parts VALUES (1, 999)").Error)
		if tx.Commit().Error == nil || errors.Is(tx.Rollback().Error, sql.ErrTxDone) {
			t.Errorf("by hand: %v, which does not tell why", tx.Error)
		}
		wantIdle(t, db, l, "k")
	})
}

// faulty is a pool whose transactions answer COMMIT with an error.
type faulty struct {
	*sql.DB
	answer error
}

type faultyTx struct {
	*sql.Tx
	answer error
}

func (f *faulty) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := f.DB.BeginTx(ctx, opts)
	return &faultyTx{tx, f.answer}, err
}

func (f *faultyTx) Commit() error {
	_ = f.Tx.Rollback()
	return f.answer
}

// TestCommit_Outcomes is the table of definite and unknown errors of COMMIT.
func TestCommit_Outcomes(t *testing.T) {
	t.Parallel()
	pg := func(code string) error { return &pgconn.PgError{Code: code} }
	my := func(number uint16) error { return &gomysql.MySQLError{Number: number} }
	definite := []error{
		pg("23505"), pg("23503"), pg("40001"), pg("40P01"), pg("P0001"), pgx.ErrTxCommitRollback,
		my(1062), my(1213), my(3101), my(9007), fmt.Errorf("wrapped: %w", my(1213)),
		errors.New("pq: could not complete operation in a failed transaction"), // of lib/pq since v1.11
		fmt.Errorf("wrapped: %w", pgx.ErrTxCommitRollback),
	}
	unknown := []error{
		pg("08006"), pg("08P01"), pg("25P02"), pg("40003"), pg("53300"), pg("57014"), pg("57P01"), pg("58000"), pg("58030"),
		pg("XX000"), pg(""), pg("23"),
		my(1053), my(1105), my(1180), my(1205), my(1290), my(1317), my(1927), my(2013), my(9001),
		io.ErrUnexpectedEOF, driver.ErrBadConn, gomysql.ErrInvalidConn, context.DeadlineExceeded, sql.ErrTxDone,
		errors.New("something else"),
	}
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		l := locker(t, backendtest.Memory())
		f := &faulty{DB: pool(t, db)}
		db.ConnPool, db.Statement.ConnPool = f, f
		ok(t, "Use", db.Use(gormlock.New(l)))
		n := 0
		check := func(answer error, sure bool) {
			t.Helper()
			f.answer = answer
			n++
			key := fmt.Sprint(n)
			err := db.Scopes(gormlock.Guard(key)).Exec("SELECT 1").Error
			want(t, "Exec", err, answer)
			if errors.Is(err, gormlock.ErrCommitUnknown) == sure || held(t, l, key) == sure {
				t.Errorf("%v: definite %v, error %v, key held %v", answer, sure, err, held(t, l, key))
			}
		}
		for _, answer := range definite {
			check(answer, true)
		}
		for _, answer := range unknown {
			check(answer, false)
		}
	})
}

// TestCommitUnknown_StuckTransaction: if SQLite refuses COMMIT and ROLLBACK, the
// connection is closed.
func TestCommitUnknown_StuckTransaction(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "sqlite" {
			return
		}
		stuck := &stuck{sqlite: pool(t, db).Driver(), file: filepath.Join(t.TempDir(), "stuck.db")}
		conns := sql.OpenDB(stuck)
		defer conns.Close()
		db, err := gorm.Open(&sqlite.Dialector{Conn: conns}, &gorm.Config{Logger: logger.Discard})
		ok(t, "Open", err)
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		want(t, "Exec", db.Scopes(gormlock.Guard("k")).Exec("CREATE TABLE t (i int)").Error, gormlock.ErrCommitUnknown)
		eventually(t, "the connection is closed", func() bool { return stuck.closed.Load() == 1 })
		if !held(t, l, "k") {
			t.Error("the key is free although the outcome is unknown")
		}
	})
}

// stuck is a database that refuses COMMIT and ROLLBACK.
type stuck struct {
	sqlite driver.Driver
	file   string
	closed atomic.Int64
}

var errStuck = errors.New("stuck")

func (s *stuck) Connect(context.Context) (driver.Conn, error) {
	c, err := s.sqlite.Open(s.file)
	return &stuckConn{c, s}, err
}

func (s *stuck) Driver() driver.Driver { return s.sqlite }

type stuckConn struct {
	driver.Conn
	db *stuck
}

func (c *stuckConn) Begin() (driver.Tx, error) { return stuckTx{}, nil }

func (c *stuckConn) Prepare(query string) (driver.Stmt, error) {
	if query == "ROLLBACK" {
		return nil, errStuck
	}
	return c.Conn.Prepare(query)
}

func (c *stuckConn) Close() error {
	c.db.closed.Add(1)
	return c.Conn.Close()
}

type stuckTx struct{}

func (stuckTx) Commit() error   { return errStuck }
func (stuckTx) Rollback() error { return errStuck }
