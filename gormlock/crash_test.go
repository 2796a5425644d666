//go:build unix

package gormlock_test

import (
	"context"
	"database/sql"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// dyingTx kills its process as soon as its COMMIT is answered.
type dyingTx struct{ *sql.Tx }

func (d *dyingTx) Commit() error {
	if err := d.Tx.Commit(); err != nil {
		return err
	}
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// dyingPayer is a child that pays once, and is gone before it can say so.
func dyingPayer(c *childProcess) error {
	l, err := c.locker(10 * time.Second)
	if err != nil {
		return err
	}
	db, err := c.open_(&wrappedPool{c.conns, func(tx *sql.Tx) gorm.ConnPool { return &dyingTx{tx} }})
	if err == nil {
		err = db.Use(gormlock.New(l))
	}
	if err != nil {
		return err
	}
	_, err = gormlock.Once(context.Background(), db, c.argument, charge)
	return err
}

// TestOnce_CrashBeforeTheAnswer: the process is killed between COMMIT and answer, and Redis forgets everything: the
// retry gets the first result, and there is one order.
func TestOnce_CrashBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		ok(t, "Use", db.Use(gormlock.New(locker(t, patientRedis(node.Client())))))
		put(t, db, 42, 10)
		key := "pay:" + place(t, db)
		c := startChild(t, "payer", node.Addr(), db, key)
		if line := c.hears(); line != "" {
			t.Fatalf("the child lived on and said %q", line)
		}
		if n := orders(t, db); n != 1 {
			t.Fatalf("%d orders after the crash, want one", n)
		}
		ok(t, "FLUSHALL", node.Client().FlushAll(t.Context()).Err())
		var item Item
		ok(t, "Take", db.Take(&item).Error)
		for range 2 {
			r, err := gormlock.Once(t.Context(), db, key, charge)
			if ok(t, "Once", err); r.Number != int64(item.ID) || r.Note != "thanks" {
				t.Errorf("the retry got %+v, the order is %d", r, item.ID)
			}
		}
		if n := orders(t, db); n != 1 {
			t.Errorf("%d orders, want one", n)
		}
	})
}
