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
)

// TestUnguarded_AsBefore runs what GORM does without guards, with the plugin and without it, and
// wants the same.
func TestUnguarded_AsBefore(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	stock := func(db *gorm.DB) *gorm.DB { return db.Model(&Stock{}).Where("sku = ?", 42) }
	forms := map[string]func(ctx context.Context, db *gorm.DB) error{
		"default transaction": func(_ context.Context, db *gorm.DB) error { return take(db, 42) },
		"associations": func(_ context.Context, db *gorm.DB) error {
			return db.Create(&Stock{SKU: 1, Items: []Item{{Name: "a"}}}).Error
		},
		"duplicate": func(_ context.Context, db *gorm.DB) error { // rolled back with its associations
			if db.Create(&Stock{SKU: 42, Items: []Item{{Name: "a"}}}).Error == nil {
				return errors.New("a duplicate was created")
			}
			return nil
		},
		"failing hook": func(_ context.Context, db *gorm.DB) error {
			err := db.Create(&Acting{SKU: 2, Name: "fail in AfterCreate"}).Error
			return expect(err, errHook)
		},
		"CreateInBatches": func(_ context.Context, db *gorm.DB) error {
			return db.CreateInBatches(&[]Stock{{SKU: 3}, {SKU: 4}, {SKU: 5}}, 2).Error
		},
		"FindInBatches": func(_ context.Context, db *gorm.DB) error {
			return db.FindInBatches(&[]Stock{}, 1, func(tx *gorm.DB, _ int) error { return nil }).Error
		},
		"FirstOrCreate": func(_ context.Context, db *gorm.DB) error { return db.FirstOrCreate(&Stock{}, Stock{SKU: 6}).Error },
		"block": func(_ context.Context, db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error { return take(tx, 42) }, &sql.TxOptions{Isolation: sql.LevelSerializable})
		},
		"block that fails": func(_ context.Context, db *gorm.DB) error {
			return expect(db.Transaction(func(tx *gorm.DB) error { return errors.Join(take(tx, 42), boom) }), boom)
		},
		"empty block": func(_ context.Context, db *gorm.DB) error { return db.Transaction(func(*gorm.DB) error { return nil }) },
		"nested": func(_ context.Context, db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error {
				return errors.Join(take(tx, 42), expect(tx.Transaction(func(tx *gorm.DB) error { return errors.Join(take(tx, 42), boom) }), boom))
			})
		},
		"rows that leave the block": func(_ context.Context, db *gorm.DB) (err error) {
			for range 20 {
				var rows *sql.Rows
				err = errors.Join(err, db.Transaction(func(tx *gorm.DB) (err error) {
					rows, err = stock(tx).Rows()
					return err
				}))
				for rows.Next() {
				}
				err = errors.Join(err, expect(rows.Err(), context.Canceled), rows.Close())
			}
			return err
		},
		"savepoints": func(_ context.Context, db *gorm.DB) error {
			tx := db.Begin()
			return errors.Join(take(tx, 42), tx.SavePoint("a").Error, take(tx, 42), tx.RollbackTo("a").Error, commit(tx))
		},
		"commit twice": func(_ context.Context, db *gorm.DB) error {
			tx := db.Begin()
			return errors.Join(take(tx, 42), commit(tx), expect(commit(tx), sql.ErrTxDone))
		},
		"empty, commit twice": func(_ context.Context, db *gorm.DB) error {
			tx := db.Begin()
			return errors.Join(commit(tx), expect(commit(tx), sql.ErrTxDone))
		},
		"empty, rollback": func(_ context.Context, db *gorm.DB) error {
			tx := db.Begin()
			return errors.Join(rollback(tx), expect(rollback(tx), sql.ErrTxDone))
		},
		"commit after cancel": func(ctx context.Context, db *gorm.DB) error {
			ctx, cancel := context.WithCancel(ctx)
			tx := db.WithContext(ctx).Begin()
			err := take(tx, 42)
			cancel()
			if commit(tx) == nil {
				return errors.New("committed after its context ended")
			}
			return err
		},
		"Rows": func(_ context.Context, db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error {
				rows, err := stock(tx).Rows()
				if err != nil {
					return err
				}
				defer rows.Close()
				if !rows.Next() {
					return errors.New("no row")
				}
				var s Stock
				return errors.Join(tx.ScanRows(rows, &s), rows.Err())
			})
		},
		"Row": func(_ context.Context, db *gorm.DB) error {
			var in, out int
			err := stock(db).Select("sku").Row().Scan(&out)
			return errors.Join(err, db.Transaction(func(tx *gorm.DB) error { return stock(tx).Select("sku").Row().Scan(&in) }))
		},
		"Connection": func(_ context.Context, db *gorm.DB) error {
			return db.Connection(func(tx *gorm.DB) error {
				return errors.Join(take(tx, 42), tx.Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
			})
		},
		"DB": func(ctx context.Context, db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error {
				in, err := tx.DB()
				out, _ := db.DB()
				if in != out {
					err = errors.Join(err, errors.New("DB is another one in a transaction"))
				}
				return err
			})
		},
		"prepared session": func(_ context.Context, db *gorm.DB) error {
			s := db.Session(&gorm.Session{PrepareStmt: true})
			return errors.Join(take(s, 42), take(s, 42), s.Transaction(func(tx *gorm.DB) error { return errors.Join(take(tx, 42), stock(tx).First(&Stock{}).Error) }))
		},
		"SkipDefaultTransaction": func(_ context.Context, db *gorm.DB) error {
			return take(db.Session(&gorm.Session{SkipDefaultTransaction: true}), 42)
		},
		"generics": func(ctx context.Context, db *gorm.DB) error {
			_, err := gorm.G[Stock](db).Where("sku = ?", 42).Update(ctx, "name", "new")
			return err
		},
		"ToSQL": func(_ context.Context, db *gorm.DB) error {
			if db.ToSQL(func(tx *gorm.DB) *gorm.DB { return tx.Find(&[]Stock{}) }) == "" {
				return errors.New("no SQL")
			}
			return nil
		},
		"Association": func(_ context.Context, db *gorm.DB) error {
			var s Stock
			err := db.Take(&s, "sku = ?", 42).Error
			return errors.Join(err, db.Model(&s).Association("Items").Append(&Item{Name: "a"}, &Item{Name: "b"}),
				db.Model(&s).Association("Items").Delete(&s.Items[0]), db.Preload("Items").Find(&[]Stock{}).Error,
				db.Session(&gorm.Session{FullSaveAssociations: true}).Save(&Stock{SKU: 8, Items: []Item{{Name: "c"}}}).Error)
		},
		"Select and Delete": func(_ context.Context, db *gorm.DB) error {
			s := Stock{SKU: 9, Items: []Item{{Name: "a"}}}
			return errors.Join(db.Create(&s).Error, db.Select("Items").Delete(&s).Error)
		},
		"batch size of a session": func(_ context.Context, db *gorm.DB) error {
			return db.Session(&gorm.Session{CreateBatchSize: 2}).Create(&[]Stock{{SKU: 3}, {SKU: 4}, {SKU: 5}}).Error
		},
		"batch that fails": func(_ context.Context, db *gorm.DB) error {
			if db.CreateInBatches(&[]Stock{{SKU: 3}, {SKU: 4}, {SKU: 42}}, 2).Error == nil {
				return errors.New("a duplicate was created")
			}
			return nil
		},
		"map": func(_ context.Context, db *gorm.DB) error {
			return db.Model(&Stock{}).Create(map[string]any{"SKU": 7, "Name": "map"}).Error
		},
		"failing hook in a block": func(_ context.Context, db *gorm.DB) error {
			return expect(db.Transaction(func(tx *gorm.DB) error {
				return tx.Create(&Acting{SKU: 2, Parts: []Part{{Name: "fail in Part.AfterCreate"}}}).Error
			}), errHook)
		},
		"panicking hook": func(_ context.Context, db *gorm.DB) (err error) {
			defer func() {
				if recover() == nil {
					err = errors.New("the panic did not arrive")
				}
			}()
			return db.Session(&gorm.Session{SkipDefaultTransaction: true}).Create(&Acting{SKU: 2, Name: "panic in BeforeCreate"}).Error
		},
		"panicking block": func(_ context.Context, db *gorm.DB) (err error) {
			defer func() {
				if recover() == nil {
					err = errors.New("the panic did not arrive")
				}
			}()
			return db.Transaction(func(tx *gorm.DB) error { _ = take(tx, 42); panic(boom) })
		},
		"DefaultTransactionTimeout": func(_ context.Context, db *gorm.DB) error {
			short := db.Session(&gorm.Session{NewDB: true})
			short.DefaultTransactionTimeout = 10 * time.Millisecond
			err := short.Transaction(func(tx *gorm.DB) error {
				err := take(tx, 42)
				for start := time.Now(); err == nil && time.Since(start) < 10*time.Second; err = take(tx, 42) {
					time.Sleep(10 * time.Millisecond)
				}
				return err
			})
			if err == nil {
				return errors.New("it committed after its time")
			}
			return nil
		},
		"NewDB": func(_ context.Context, db *gorm.DB) error {
			return db.Where("sku = 99").Transaction(func(tx *gorm.DB) error { return take(tx.Session(&gorm.Session{NewDB: true}), 42) })
		},
		"DryRun": func(_ context.Context, db *gorm.DB) error {
			dry := db.Session(&gorm.Session{DryRun: true})
			return errors.Join(take(dry, 42), dry.Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
		},
		"DisableNestedTransaction": func(_ context.Context, db *gorm.DB) error {
			return db.Session(&gorm.Session{DisableNestedTransaction: true}).Transaction(func(tx *gorm.DB) error {
				return expect(tx.Transaction(func(tx *gorm.DB) error { return errors.Join(take(tx, 42), boom) }), boom)
			})
		},
		"raw SQL": func(_ context.Context, db *gorm.DB) error {
			var n int
			return errors.Join(db.Exec("UPDATE stocks SET name = ? WHERE sku = ?", "raw", 42).Error,
				db.Raw("SELECT COUNT(*) FROM stocks WHERE name = ?", "raw").Scan(&n).Error,
				db.Transaction(func(tx *gorm.DB) error { return tx.Exec("UPDATE stocks SET name = ? WHERE sku = ?", "rawer", 42).Error }))
		},
		"read-only transaction": func(_ context.Context, db *gorm.DB) error {
			if db.Name() == "sqlite" {
				return nil // BEGIN IMMEDIATE writes
			}
			return db.Transaction(func(tx *gorm.DB) error { return tx.First(&Stock{}, "sku = ?", 42).Error }, &sql.TxOptions{ReadOnly: true})
		},
		"generics in a block": func(ctx context.Context, db *gorm.DB) error {
			return expect(db.Transaction(func(tx *gorm.DB) error {
				if err := gorm.G[Stock](tx).Create(ctx, &Stock{SKU: 11, Name: "g"}); err != nil {
					return err
				}
				_, err := gorm.G[Stock](tx).Where("sku = ?", 42).Delete(ctx)
				return errors.Join(err, boom)
			}), boom)
		},
		"AutoMigrate": func(_ context.Context, db *gorm.DB) error { return db.AutoMigrate(&Stock{}, &Item{}) },
	}
	outcome := func(t *testing.T, db *gorm.DB, form func(context.Context, *gorm.DB) error) (stocks []Stock, items int64) {
		t.Helper()
		ok(t, "Delete", db.Where("1 = 1").Delete(&Stock{}).Error)
		ok(t, "Delete", db.Where("1 = 1").Delete(&Item{}).Error)
		put(t, db, 42, 10)
		ok(t, "form", form(t.Context(), db))
		ok(t, "Find", db.Order("sku").Find(&stocks).Error)
		ok(t, "Count", db.Model(&Item{}).Count(&items).Error)
		return stocks, items
	}
	compare := func(t *testing.T, plain, wrapped *gorm.DB) {
		t.Helper()
		for name, form := range forms {
			before, itemsBefore := outcome(t, plain, form)
			after, itemsAfter := outcome(t, wrapped, form)
			same := len(before) == len(after) && itemsBefore == itemsAfter
			for i := range before {
				same = same && before[i].SKU == after[i].SKU && before[i].Left == after[i].Left && before[i].Name == after[i].Name
			}
			if !same {
				t.Errorf("%s: %v and %d items with the plugin, %v and %d without", name, after, itemsAfter, before, itemsBefore)
			}
			eventually(t, name+": no connection is in use", func() bool { return inUse(t, wrapped) == 0 })
		}
	}
	each(t, func(t *testing.T, plain *gorm.DB) {
		wrapped, err := gorm.Open(plain.Dialector, config(func(c *gorm.Config) { c.PrepareStmt, c.Logger = plain.PrepareStmt, plain.Logger }))
		ok(t, "Open", err)
		ok(t, "Use", wrapped.Use(gormlock.New(locker(t, (&journal{}).backend()))))
		compare(t, plain, wrapped) // two gorm.DB over one pool
		if !plain.PrepareStmt && (long || plain.Name() == "sqlite") {
			session := &gorm.Session{PrepareStmt: true}
			compare(t, plain.Session(session), wrapped.Session(session))
		}
	})
}

// commit and rollback leave no error in tx.
func commit(tx *gorm.DB) error   { return tx.Session(&gorm.Session{}).Commit().Error }
func rollback(tx *gorm.DB) error { return tx.Session(&gorm.Session{}).Rollback().Error }

func expect(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return errors.Join(errors.New("not the error that was expected"), err)
}

// TestUnguarded_BeginFails: BEGIN is sent with the first statement, and its error comes there; a
// Row carries it.
func TestUnguarded_BeginFails(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Close", pool(t, db).Close())
		for _, tx := range []*gorm.DB{db.Begin(), db.WithContext(gormlock.WithGuard(t.Context(), "k")).Begin()} {
			ok(t, "Begin", tx.Error)
			if err := tx.Raw("SELECT 1").Row().Scan(new(int)); err == nil {
				t.Error("a Row of a closed database was scanned")
			}
			if take(tx.Session(&gorm.Session{}), 42) == nil || commit(tx) == nil {
				t.Error("a statement and COMMIT on a closed database succeeded")
			}
			ok(t, "Rollback", rollback(tx))
		}
		if held(t, l, "k") {
			t.Error("the key is still locked")
		}
	})
}
