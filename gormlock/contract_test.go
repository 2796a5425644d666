package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestContract has the lines of the README, word for word.
func TestContract(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		err := db.Scopes(gormlock.Guard("stock:42")).Transaction(func(tx *gorm.DB) error {
			if !held(t, l, "stock:42") {
				_ = tx.First(&Stock{}) // the first statement takes the lock
			}
			if !held(t, l, "stock:42") {
				t.Error("the key is not locked in the block")
			}
			return nil
		})
		ok(t, "Transaction", err)
		if db.Name() == "sqlite" { // elsewhere LEFT is a reserved word, which gorm.Expr does not quote
			err = db.Model(&Stock{}).Scopes(gormlock.Guard("stock:42")).Where("sku = ?", 42).Update("left", gorm.Expr("left - 1")).Error
		} else {
			err = db.Model(&Stock{}).Scopes(gormlock.Guard("stock:42")).Where("sku = ?", 42).Update("left", gorm.Expr("? - 1", column("left"))).Error
		}
		ok(t, "Update", err)
		wantLeft(t, db, 42, 9)
		wantIdle(t, db, l, "stock:42")
	})
}

// TestForms runs each form of the guard and asks in the middle of it whether the key is held and what the token is.
func TestForms(t *testing.T) {
	t.Parallel()
	guard := gormlock.Guard("k")
	forms := map[string]func(ctx context.Context, db *gorm.DB) error{
		"create": func(ctx context.Context, db *gorm.DB) error { return db.Scopes(guard).Create(&Stock{SKU: 1}).Error },
		"batch": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).Create(&[]Stock{{SKU: 1}, {SKU: 2}}).Error
		},
		"batches": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).CreateInBatches(&[]Stock{{SKU: 1}, {SKU: 2}, {SKU: 3}}, 2).Error
		},
		"associations": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).Create(&Stock{SKU: 1, Items: []Item{{Name: "a"}, {Name: "b"}}}).Error
		},
		"save": func(ctx context.Context, db *gorm.DB) error { return db.Scopes(guard).Save(&Stock{SKU: 1}).Error },
		"save of what is not there": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).Save(&Stock{ID: 99, SKU: 1}).Error
		},
		"update": func(ctx context.Context, db *gorm.DB) error { return take(db.Scopes(guard), 42) },
		"updates": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).Where("sku = ?", 42).Updates(&Stock{Name: "new"}).Error
		},
		"delete": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).Delete(&Stock{}, "sku = ?", 42).Error
		},
		"exec": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).Exec("UPDATE stocks SET name = ? WHERE sku = ?", "new", 42).Error
		},
		"prepared session": func(ctx context.Context, db *gorm.DB) error {
			return take(db.Session(&gorm.Session{PrepareStmt: true}).Scopes(guard), 42)
		},
		"prepared session, block": func(ctx context.Context, db *gorm.DB) error {
			return db.Session(&gorm.Session{PrepareStmt: true}).Scopes(guard).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
		},
		"session in a block": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).Transaction(func(tx *gorm.DB) error {
				return take(tx.Session(&gorm.Session{PrepareStmt: true}), 42)
			})
		},
		"context, single": func(ctx context.Context, db *gorm.DB) error {
			return take(db.WithContext(gormlock.WithGuard(ctx, "k")), 42)
		},
		"context, block": func(ctx context.Context, db *gorm.DB) error {
			return db.WithContext(gormlock.WithGuard(ctx, "k")).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
		},
		"context, generics": func(ctx context.Context, db *gorm.DB) error {
			_, err := gorm.G[Stock](db).Where("sku = ?", 42).Update(gormlock.WithGuard(ctx, "k"), "name", "new")
			return err
		},
		"by hand": func(ctx context.Context, db *gorm.DB) error {
			tx := db.Begin()
			return errors.Join(take(tx.Scopes(guard), 42), tx.Commit().Error)
		},
		"connection": func(ctx context.Context, db *gorm.DB) error {
			return db.Connection(func(tx *gorm.DB) error { return take(tx.Scopes(guard), 42) })
		},
		"connection, Transaction": func(ctx context.Context, db *gorm.DB) error {
			return db.Connection(func(tx *gorm.DB) error {
				return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error { return take(tx, 42) })
			})
		},
		"read in a block": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).Transaction(func(tx *gorm.DB) error {
				return errors.Join(tx.Preload("Items").First(&Stock{}).Error, take(tx, 42))
			})
		},
		"map": func(ctx context.Context, db *gorm.DB) error {
			return db.Model(&Stock{}).Scopes(guard).Create(map[string]any{"SKU": 7, "Name": "map"}).Error
		},
		"session without the scopes, context": func(ctx context.Context, db *gorm.DB) error {
			return take(db.Session(&gorm.Session{NewDB: true, Context: gormlock.WithGuard(ctx, "k")}), 42)
		},
		"skipping the default transaction": func(ctx context.Context, db *gorm.DB) error {
			return take(db.Session(&gorm.Session{SkipDefaultTransaction: true}).Scopes(guard), 42)
		},
		"default time-out": func(ctx context.Context, db *gorm.DB) error {
			bounded := db.Session(&gorm.Session{})
			bounded.DefaultTransactionTimeout = time.Minute
			return errors.Join(take(bounded.Scopes(guard), 42),
				bounded.Scopes(guard).Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
		},
		"context, association": func(ctx context.Context, db *gorm.DB) error {
			s := Stock{SKU: 5}
			db = db.WithContext(gormlock.WithGuard(ctx, "k"))
			return errors.Join(db.Create(&s).Error, db.Transaction(func(tx *gorm.DB) error {
				return errors.Join(tx.Model(&s).Association("Items").Append(&Item{Name: "a"}), tx.Select("Items").Delete(&s).Error)
			}))
		},
		"context, generics in a block": func(ctx context.Context, db *gorm.DB) error {
			return db.WithContext(gormlock.WithGuard(ctx, "k")).Transaction(func(tx *gorm.DB) error {
				return gorm.G[Stock](tx).Create(ctx, &Stock{SKU: 6})
			})
		},
		"context, raw SQL with rows": func(ctx context.Context, db *gorm.DB) error {
			return db.WithContext(gormlock.WithGuard(ctx, "k")).Transaction(func(tx *gorm.DB) error {
				rows, err := tx.Raw("SELECT sku FROM stocks").Rows()
				if err != nil {
					return err
				}
				return errors.Join(rows.Close(), tx.Exec("UPDATE stocks SET name = ? WHERE sku = ?", "raw", 42).Error)
			})
		},
		"savepoints": func(ctx context.Context, db *gorm.DB) error {
			tx := db.WithContext(gormlock.WithGuard(ctx, "k")).Begin()
			return errors.Join(tx.SavePoint("a").Error, take(tx, 42), tx.RollbackTo("a").Error, tx.Commit().Error)
		},
		"options": func(ctx context.Context, db *gorm.DB) error {
			return db.Scopes(guard).Transaction(func(tx *gorm.DB) error { return take(tx, 42) }, &sql.TxOptions{Isolation: sql.LevelSerializable})
		},
	}
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		locks := 0
		h := &hooked{Sealer: backendtest.Memory(), unlock: func(string) { locks++ }}
		l := locker(t, h)
		ok(t, "Use", db.Use(gormlock.New(l)))
		statements := 0
		seen := func(tx *gorm.DB) {
			statements++
			token, tokenErr := gormlock.Token(tx)
			if st, err := l.Inspect(tx.Statement.Context, "k"); err != nil || st.Status != core.Held || tokenErr != nil || token < st.Token {
				t.Errorf("%s: key %v, %v, token %d, %v", tx.Statement.SQL.String(), st, err, token, tokenErr)
			}
		}
		ok(t, "Register", errors.Join(
			db.Callback().Create().Before("gorm:after_create").Register("seen", seen),
			db.Callback().Update().Before("gorm:after_update").Register("seen", seen),
			db.Callback().Delete().Before("gorm:after_delete").Register("seen", seen),
			db.Callback().Raw().After("gorm:raw").Register("seen", seen)))
		modes := map[string]*gorm.DB{"": db}
		if !db.PrepareStmt {
			modes["session: "] = db.Session(&gorm.Session{PrepareStmt: true})
		}
		for mode, db := range modes {
			for name, form := range forms {
				statements, locks = 0, 0
				if err := form(t.Context(), db); err != nil {
					t.Errorf("%s%s: %v", mode, name, err)
				}
				if statements == 0 || locks == 0 {
					t.Errorf("%s%s: %d statements, %d locks", mode, name, statements, locks)
				}
				wantIdle(t, db, l, "k")
				ctx := gormlock.WithGuard(t.Context(), "k") // cleaning up needs one as well, for seen
				ok(t, "Delete", db.WithContext(ctx).Delete(&Stock{}, "sku < ?", 10).Error)
				ok(t, "Delete", db.WithContext(ctx).Where("sku = 42").Delete(&Stock{}).Error)
				ok(t, "Create", db.WithContext(ctx).Create(&Stock{SKU: 42, Left: 10}).Error)
			}
		}
		if _, err := gormlock.Token(db); err == nil {
			t.Error("a Token without a transaction")
		}
	})
}

// TestGuards_TakenTogether: several guards, and keys of a context, are taken in one order, all or none.
func TestGuards_TakenTogether(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 10)
		j := record(t, db)
		many := []func(*gorm.DB) *gorm.DB{gormlock.Guard("c"), gormlock.Guard("a"), gormlock.Guard("c"), gormlock.Guard("b")}
		ok(t, "single", take(db.Scopes(many...), 42))
		all := []string{"lock a", "lock b", "lock c", "BEGIN", "UPDATE", "COMMIT", "unlock c", "unlock b", "unlock a"}
		j.want(t, "single", all...)
		ok(t, "block", db.Scopes(many...).Transaction(func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			if _, err := gormlock.Token(tx); err == nil {
				t.Error("one Token for three keys")
			}
			return nil
		}))
		j.want(t, "block", all...)
		ctx := gormlock.WithGuard(gormlock.WithGuard(t.Context(), "c"), "a")
		ok(t, "context and scope", take(db.WithContext(ctx).Scopes(gormlock.Guard("b")), 42))
		j.want(t, "context and scope", all...)
	})
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		b, err := l.Acquire(t.Context(), "b")
		ok(t, "Acquire", err)
		many := []func(*gorm.DB) *gorm.DB{gormlock.Guard("a", gormlock.WithWait(10*time.Millisecond)), gormlock.Guard("b", gormlock.WithWait(20*time.Millisecond))}
		want(t, "single", take(db.Scopes(many...), 42), core.ErrTaken)
		want(t, "block", db.Scopes(many...).Transaction(func(tx *gorm.DB) error { return take(tx, 42) }), core.ErrTaken)
		wantIdle(t, db, l, "a")
		ok(t, "Release", b.Release(t.Context()))
		wantLeft(t, db, 42, 10)
	})
}
