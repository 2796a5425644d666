package main

import (
	"database/sql"
	"errors"
	"fmt"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/testutil/internal/server"
)

const (
	stockSKU   = 42
	stockKey   = "stock:42"
	stockStart = 1 << 40
)

type stock struct {
	SKU       int64 `gorm:"primaryKey;autoIncrement:false"`
	Remaining int64
}

type sale struct {
	ID  int64 `gorm:"primaryKey"`
	SKU int64
}

var errSoldOut = errors.New("sold out")

// sell is what every service writes: read, decide, write, and the order in the same transaction.
// Without a lock it oversells.
func sell(tx *gorm.DB) error {
	var s stock
	if err := tx.First(&s, stockSKU).Error; err != nil {
		return err
	}
	if s.Remaining < 1 {
		return errSoldOut
	}
	if err := tx.Model(&s).Update("remaining", s.Remaining-1).Error; err != nil {
		return err
	}
	return tx.Create(&sale{SKU: stockSKU}).Error
}

// sellForUpdate locks the row with the read.
func sellForUpdate(tx *gorm.DB) error {
	return sell(tx.Clauses(clause.Locking{Strength: "UPDATE"}).Session(&gorm.Session{}))
}

// sellConditionally decides in the update.
func sellConditionally(tx *gorm.DB) error {
	u := tx.Model(&stock{}).Where("sku = ? AND remaining >= 1", stockSKU).Update("remaining", gorm.Expr("remaining - 1"))
	if u.Error != nil {
		return u.Error
	}
	if u.RowsAffected == 0 {
		return errSoldOut
	}
	return tx.Create(&sale{SKU: stockSKU}).Error
}

// openGORM opens a database whose pool has so many connections. The statements go to count.
func openGORM(b *bench, d database, connections int, count *statements) (*gorm.DB, error) {
	pool, err := openPool(b, d, connections, count)
	if err != nil {
		return nil, err
	}
	return gormOn(pool, d)
}

func gormOn(pool *sql.DB, d database) (*gorm.DB, error) {
	var dialector gorm.Dialector = mysql.New(mysql.Config{Conn: pool})
	if d.kind == server.Postgres {
		dialector = postgres.New(postgres.Config{Conn: pool})
	}
	return gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
}

func openPool(b *bench, d database, connections int, count *statements) (*sql.DB, error) {
	dsn, err := b.database(d)
	if err != nil {
		return nil, err
	}
	var pool *sql.DB
	switch d.kind {
	case server.MySQL:
		config, err := gomysql.ParseDSN(dsn)
		if err != nil {
			return nil, err
		}
		connector, err := gomysql.NewConnector(config)
		if err != nil {
			return nil, err
		}
		pool = sql.OpenDB(counted{connector, count})
	case server.Postgres:
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		pool = sql.OpenDB(counted{stdlib.GetConnector(*config), count})
	}
	pool.SetMaxOpenConns(connections)
	pool.SetMaxIdleConns(1000)
	return pool, nil
}

func closeGORM(db *gorm.DB) {
	if pool, err := db.DB(); err == nil {
		_ = pool.Close()
	}
}

// restock makes the tables anew.
func restock(db *gorm.DB, remaining int64) error {
	return errors.Join(
		db.Migrator().DropTable(&stock{}, &sale{}),
		db.AutoMigrate(&stock{}, &sale{}),
		db.Create(&stock{SKU: stockSKU, Remaining: remaining}).Error)
}

// balance is the check of every figure: each sale took one, and has its order.
func balance(db *gorm.DB, sold int64) error {
	var s stock
	var orders int64
	if err := errors.Join(db.First(&s, stockSKU).Error, db.Model(&sale{}).Count(&orders).Error); err != nil {
		return err
	}
	if taken := stockStart - s.Remaining; taken != sold || orders != sold {
		return fmt.Errorf("the books do not add up: %d sales, %d taken from stock, %d orders", sold, taken, orders)
	}
	return nil
}
