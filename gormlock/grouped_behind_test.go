package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestGrouped_StatementAfterItsTurn: a goroutine that a function left behind does not write in somebody else's turn.
func TestGrouped_StatementAfterItsTurn(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		var left *gorm.DB
		a := &caller{fn: func(tx *gorm.DB) error { left = tx; return take(tx, 42) }}
		b := &caller{fn: func(tx *gorm.DB) error {
			want(t, "statement of another", take(left.WithContext(context.Background()), 42), sql.ErrTxDone)
			want(t, "prepared", take(left.Session(&gorm.Session{PrepareStmt: true, Context: context.Background()}), 42), sql.ErrTxDone)
			return take(tx, 42)
		}}
		together(t, db, l, a, b)
		ok(t, "a", a.err)
		ok(t, "b", b.err)
		wantLeft(t, db, 42, 8)
	})
}

// TestGrouped_StatementAcrossTurns: a statement of a goroutine that was left behind is part of its own turn, or fails.
func TestGrouped_StatementAcrossTurns(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 1000)
		put(t, db, 43, 1000)
		n := int64(0)
		for range 10 {
			var behind sync.WaitGroup
			a := &caller{fn: func(tx *gorm.DB) error {
				ok(t, "take", take(tx, 42))
				behind.Go(func() {
					for take(tx.WithContext(context.Background()), 43) == nil {
						n++
					}
				})
				time.Sleep(2 * time.Millisecond)
				return nil
			}}
			b := &caller{fn: func(tx *gorm.DB) error {
				err := take(tx, 42)
				time.Sleep(time.Millisecond)
				return errors.Join(err, boom)
			}}
			together(t, db, l, a, b)
			behind.Wait()
			ok(t, "a", a.err)
			want(t, "b", b.err, boom)
		}
		wantLeft(t, db, 42, 990)
		wantLeft(t, db, 43, 1000-n)
	})
}

// TestGrouped_StatementOnItsWay: a turn does not end while a statement of it is on its way to the database.
func TestGrouped_StatementOnItsWay(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		slow := &slow{sent: make(chan struct{}), pass: make(chan struct{})}
		wrapTx(t, db, func(tx *sql.Tx) gorm.ConnPool { return &slowTx{tx, slow} })
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		behind := make(chan error, 1)
		a := &caller{fn: func(tx *gorm.DB) error {
			go func() { behind <- tx.Exec("UPDATE stocks SET name = 'slow' WHERE sku = 43").Error }()
			<-slow.sent
			time.AfterFunc(50*time.Millisecond, func() { close(slow.pass) })
			return take(tx, 42)
		}}
		b := &caller{fn: func(tx *gorm.DB) error {
			select {
			case <-slow.pass:
			default:
				t.Error("the next turn began before")
			}
			return errors.Join(take(tx, 42), boom)
		}}
		together(t, db, l, a, b)
		ok(t, "behind", <-behind)
		ok(t, "a", a.err)
		want(t, "b", b.err, boom)
		var n int64
		ok(t, "Count", db.Model(&Stock{}).Where("name = ?", "slow").Count(&n).Error)
		if n != 1 {
			t.Error("the statement is in the turn of another")
		}
	})
}

// slow holds up one statement before it is sent.
type slow struct{ sent, pass chan struct{} }

type slowTx struct {
	*sql.Tx
	slow *slow
}

func (t *slowTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if strings.Contains(query, "slow") {
		close(t.slow.sent)
		<-t.slow.pass
	}
	return t.Tx.ExecContext(ctx, query, args...)
}
