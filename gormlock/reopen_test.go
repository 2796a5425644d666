package gormlock_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// giveBack are the ways to put n of stock 42 back under the guard "k".
var giveBack = map[string]func(db *gorm.DB, n int64) error{
	"single": func(db *gorm.DB, n int64) error { return refund(db.Scopes(gormlock.Guard("k", gormlock.Reopen())), n) },
	"block": func(db *gorm.DB, n int64) error {
		return db.Scopes(gormlock.Guard("k", gormlock.Reopen())).Transaction(func(tx *gorm.DB) error { return refund(tx, n) })
	},
	"Transaction": func(db *gorm.DB, n int64) error {
		return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return refund(tx, n) }, gormlock.Reopen())
	},
	"Grouped": func(db *gorm.DB, n int64) error {
		return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return refund(tx, n) }, gormlock.Grouped(8), gormlock.Reopen())
	},
}

func refund(db *gorm.DB, n int64) error {
	return db.Model(&Stock{}).Where("sku = ?", 42).Update("left", gorm.Expr("? + ?", column("left"), n)).Error
}

// TestReopen: a refund goes through under a sealed key, with Protect, and buyers of this process buy
// again at once although they remembered the seal.
func TestReopen(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 0)
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l, gormlock.Protect(&Stock{}), gormlock.RememberSeals(time.Hour))))
		for name, back := range giveBack {
			sellsOut(t, name, l, func() error { return sellers["Transaction"](db, 42, 1) })
			want(t, name+": sealed", sellers["Transaction"](db, 42, 1), core.ErrSealed)
			want(t, name+": without the option", gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return refund(tx, 1) }), gormlock.ErrInsufficient)
			want(t, name+": without a guard", refund(db, 1), gormlock.ErrUnguarded)
			ok(t, name, back(db, 2))
			ok(t, name+": again, with nothing to open", back(db, 1))
			for way, sell := range sellers {
				if way != "block" {
					ok(t, name+", "+way, sell(db, 42, 1))
					eventually(t, "the key is free", func() bool { return !held(t, l, "k") })
				}
			}
			wantLeft(t, db, 42, 0)
		}
	})
}

// TestReopen_SeveralKeys: every sealed key of the guard is opened.
func TestReopen_SeveralKeys(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 0)
		want(t, "sell", sellers["single"](db, 42, 1), gormlock.ErrInsufficient)
		guard := db.Scopes(gormlock.Guard("a"), gormlock.Guard("k", gormlock.Reopen()), gormlock.Guard("z"))
		ok(t, "refund", refund(guard, 1))
		ok(t, "sell", sellers["single"](db, 42, 1))
	})
}

// TestReopen_OtherValues: what SealWhenOut did not seal stays sealed.
func TestReopen_OtherValues(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 0)
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Seal", k.Seal(t.Context(), []byte("an answer"), time.Minute))
		for name, back := range giveBack {
			err := back(db, 1)
			want(t, name, err, core.ErrSealed)
			if errors.Is(err, gormlock.ErrInsufficient) || !strings.Contains(err.Error(), `"k"`) || !strings.Contains(err.Error(), "Reopen opens only") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !sealed(t, l, "k") {
			t.Error("the key is open")
		}
		wantLeft(t, db, 42, 0)
	})
}

// TestReopen_SealedAgain: a buyer comes in between and seals the key again. The guard repeats it
// within its wait.
func TestReopen_SealedAgain(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		b := &asked{Sealer: backendtest.Memory()}
		ok(t, "Use", db.Use(gormlock.New(locker(t, b))))
		put(t, db, 42, 0)
		buyer := locker(t, b)
		for name, back := range giveBack {
			unseals := 0
			b.afterUnseal = func() {
				if unseals++; unseals <= 3 {
					k, err := buyer.Acquire(t.Context(), "k")
					ok(t, "Acquire", err)
					ok(t, "Seal", k.Seal(t.Context(), []byte("onelane: sold out"), time.Minute))
				}
			}
			sellsOut(t, name, buyer, func() error { return sellers["single"](db, 42, 1) })
			if ok(t, name, back(db, 1)); unseals != 4 {
				t.Errorf("%s: it unsealed %d times, want 4", name, unseals)
			}
			ok(t, name, sellers["single"](db, 42, 1))
			sellsOut(t, name, buyer, func() error { return sellers["single"](db, 42, 1) })
			unseals = -1 << 40 // for ever
			impatient := db.Scopes(gormlock.Guard("k", gormlock.Reopen(), gormlock.WithWait(50*time.Millisecond)))
			want(t, "for ever", refund(impatient, 1), gormlock.ErrInsufficient)
			wantLeft(t, db, 42, 0)
		}
	})
}

// TestReopen_AmongBuyers: buyers and refunds at once on a real Redis. The books balance, and at the
// end everything is sold.
func TestReopen_AmongBuyers(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Unseal", l.Unseal(t.Context(), "k"))
		ok(t, "Use", db.Use(gormlock.New(l, gormlock.Protect(&Stock{}), gormlock.RememberSeals(10*time.Millisecond), gormlock.WithWait(time.Minute))))
		pool(t, db).SetMaxOpenConns(8)
		ok(t, "put", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			return tx.Create(&Stock{SKU: 42, Left: 5}).Error
		}))
		var turn, sold, returned atomic.Int64
		ways := []string{"single", "block", "Transaction", "Grouped"}
		rush(t, 80, func() error {
			i := turn.Add(1)
			way := ways[i%4]
			if i%4 == 0 { // a refund
				returned.Add(1)
				return giveBack[ways[i/4%4]](db, 1)
			}
			err := sellers[way](db, 42, 1)
			switch {
			case err == nil:
				sold.Add(1)
			case errors.Is(err, gormlock.ErrInsufficient):
				return errSoldOut
			}
			return err
		})
		if rest := left(t, db, 42); rest != 5+returned.Load()-sold.Load() || rest < 0 || returned.Load() != 20 {
			t.Errorf("%d sold, %d returned, %d left of 5", sold.Load(), returned.Load(), rest)
		}
		ok(t, "one more refund", giveBack["Transaction"](db, 1))
		eventually(t, "everything is sold", func() bool {
			if err := sellers["Transaction"](db, 42, 1); err != nil {
				want(t, "a later buyer", err, gormlock.ErrInsufficient)
			}
			return left(t, db, 42) == 0
		})
	})
}
