package gormlock_test

import (
	"bytes"
	"context"
	"log"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// timer is a logger that keeps when the last statement began.
type timer struct {
	logger.Interface
	mu    sync.Mutex
	began time.Time
	sql   string
}

func (s *timer) LogMode(level logger.LogLevel) logger.Interface {
	s.Interface = s.Interface.LogMode(level)
	return s
}

func (s *timer) Trace(ctx context.Context, began time.Time, fc func() (string, int64), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = began
	s.sql, _ = fc()
	s.Interface.Trace(ctx, began, fc, err)
}

func (s *timer) ParamsFilter(_ context.Context, sql string, _ ...any) (string, []any) {
	return sql, nil
}

// slowLocks is a database whose locks take 5 ms, long enough to be kept out of SQL time. granted
// returns when the last one was granted.
func slowLocks(t *testing.T, fn func(t *testing.T, db *gorm.DB, granted func() time.Time)) {
	t.Helper()
	each(t, func(t *testing.T, db *gorm.DB) {
		var last atomic.Value
		l := locker(t, &hooked{Sealer: backendtest.Memory(), locked: func(string) {
			time.Sleep(5 * time.Millisecond)
			last.Store(time.Now())
		}})
		put(t, db, 42, 100)
		ok(t, "Use", db.Use(gormlock.New(l)))
		fn(t, db, func() time.Time { return last.Load().(time.Time) })
	})
}

// TestLogger_WaitIsNotSQLTime: for GORM's logger a statement begins when its lock is there.
func TestLogger_WaitIsNotSQLTime(t *testing.T) {
	t.Parallel()
	slowLocks(t, func(t *testing.T, db *gorm.DB, granted func() time.Time) {
		statement := func(tx *gorm.DB) error { return take(tx, 42) }
		guard := gormlock.Guard("k")
		forms := map[string]func(db *gorm.DB) error{
			"single":      func(db *gorm.DB) error { return statement(db.Scopes(guard)) },
			"Debug":       func(db *gorm.DB) error { return statement(db.Debug().Scopes(guard)) },
			"Raw.Scan":    func(db *gorm.DB) error { return db.Scopes(guard).Transaction(rawScan) },
			"block":       func(db *gorm.DB) error { return db.Scopes(guard).Transaction(statement) },
			"Transaction": func(db *gorm.DB) error { return gormlock.Transaction(db, "k", statement) },
			"Begin": func(db *gorm.DB) error {
				tx := db.WithContext(gormlock.WithGuard(t.Context(), "k")).Begin()
				ok(t, "Begin", tx.Error)
				ok(t, "take", statement(tx))
				return tx.Commit().Error
			},
		}
		for name, form := range forms {
			s := &timer{Interface: logger.Discard}
			ok(t, name, form(db.Session(&gorm.Session{Logger: s})))
			if s.began.Before(granted()) {
				t.Errorf("%s: the statement began %v before its lock was there", name, granted().Sub(s.began))
			}
			if strings.Contains(s.sql, "42") && name != "Raw.Scan" { // for which GORM does not ask the filter
				t.Errorf("%s: the values are logged although the logger filters them: %s", name, s.sql)
			}
		}
	})
}

func rawScan(tx *gorm.DB) error {
	var n int
	return tx.Raw("SELECT COUNT(*) FROM stocks WHERE sku = ?", 42).Scan(&n).Error
}

// TestLogger_LaterStatements: the wait changes the time of its own statement only, and not that of
// later ones in the same session.
func TestLogger_LaterStatements(t *testing.T) {
	t.Parallel()
	slowLocks(t, func(t *testing.T, db *gorm.DB, granted func() time.Time) {
		var sent time.Time
		ok(t, "Register", db.Callback().Update().Before("gorm:update").Register("sent", func(*gorm.DB) {
			sent = time.Now()
		}))
		s := &timer{Interface: logger.Discard}
		session := db.Session(&gorm.Session{Logger: s}).Model(&Stock{}).Where("sku = ?", 42)
		for range 3 { // guarded, in one session: the loggers must not pile up
			ok(t, "Update", session.Scopes(gormlock.Guard("k")).Update("name", "guarded").Error)
		}
		lastGrant := granted()
		ok(t, "Update", session.Update("name", "unguarded").Error)
		if s.began.Before(lastGrant) || s.began.After(sent) {
			t.Errorf("a later statement began %v after it was sent", s.began.Sub(sent))
		}
		if db.Logger != logger.Discard {
			t.Errorf("the database's logger is a %T", db.Logger)
		}
	})
}

// TestLogger_NamesTheCallersLine: GORM's own logger prints the line of the caller, as without a guard.
func TestLogger_NamesTheCallersLine(t *testing.T) {
	t.Parallel()
	slowLocks(t, func(t *testing.T, db *gorm.DB, _ func() time.Time) {
		var out bytes.Buffer
		printed := logger.New(log.New(&out, "", 0), logger.Config{LogLevel: logger.Info})
		ok(t, "take", take(db.Session(&gorm.Session{Logger: printed}).Scopes(gormlock.Guard("k")), 42))
		if file, _, _ := strings.Cut(out.String(), ":"); !strings.HasSuffix(file, "gormlock/main_test.go") { // has take
			t.Errorf("got %s, want the line of the statement", out.String())
		}
	})
}
