package main

import (
	"context"
	"database/sql"
	"errors"
	"regexp"

	"gorm.io/gorm"

	"github.com/onelane/onelane/testutil/internal/server"
)

const (
	groupSize       = 32
	aloneName       = "the statements alone, 32 per COMMIT"
	aloneByGORMName = "the statements alone, by GORM"
)

var (
	aloneTexts = [3]string{"SELECT * FROM stocks WHERE sku = $1 ORDER BY sku LIMIT 1", "UPDATE stocks SET remaining = $1 WHERE sku = $2", "INSERT INTO sales (sku) VALUES ($1)"}
	numbered   = regexp.MustCompile(`\$\d`)
)

// alone sells as fast as the statements of sell can be sent one after the other. One goroutine
// sends them prepared on one connection, without a lock, savepoints, GORM, or a context that ends.
// No grouping of functions that send these statements is faster.
func alone(d database, db *gorm.DB) func(context.Context) error {
	var prepared [3]*sql.Stmt
	return func(ctx context.Context) error {
		ctx = context.WithoutCancel(ctx)
		pool, err := db.DB()
		if err != nil {
			return err
		}
		for i, text := range aloneTexts {
			if prepared[i] != nil {
				continue
			}
			if d.kind == server.MySQL {
				text = numbered.ReplaceAllString(text, "?")
			}
			if prepared[i], err = pool.PrepareContext(ctx, text); err != nil {
				return err
			}
		}
		tx, err := pool.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		read, write, order := tx.StmtContext(ctx, prepared[0]), tx.StmtContext(ctx, prepared[1]), tx.StmtContext(ctx, prepared[2])
		for range groupSize {
			var s stock
			if err := read.QueryRowContext(ctx, stockSKU).Scan(&s.SKU, &s.Remaining); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			if s.Remaining < 1 {
				return errors.Join(errSoldOut, tx.Rollback())
			}
			if _, err := write.ExecContext(ctx, s.Remaining-1, stockSKU); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			if _, err := order.ExecContext(ctx, stockSKU); err != nil {
				return errors.Join(err, tx.Rollback())
			}
		}
		return tx.Commit()
	}
}

// aloneByGORM is alone with sell itself.
func aloneByGORM(_ database, db *gorm.DB) func(context.Context) error {
	db = db.Session(&gorm.Session{PrepareStmt: true, SkipDefaultTransaction: true})
	var prepared bool
	return func(ctx context.Context) error {
		if !prepared { // what GORM prepares in a transaction is prepared again in the next one
			if err := prepare(db.WithContext(ctx)); err != nil {
				return err
			}
			prepared = true
		}
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			for range groupSize {
				if err := sell(tx); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// prepare runs the statements of sell, and leaves the books as they were.
func prepare(db *gorm.DB) error {
	var s stock
	if err := db.First(&s, stockSKU).Error; err != nil {
		return err
	}
	o := sale{SKU: stockSKU}
	return errors.Join(db.Model(&s).Update("remaining", s.Remaining).Error, db.Create(&o).Error, db.Delete(&o).Error)
}
