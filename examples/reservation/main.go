// Command reservation is a flash sale with payment: a buyer reserves, has some minutes to pay, and
// confirms. Units that nobody pays for go back on sale. Nothing is sold twice, whichever process
// crashes, at any time.
//
//	go run ./examples/reservation   # SQLite: nothing to install
//
// Everything to copy is in reservation.go: two tables and five functions.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock/stock"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "reservation:", err)
		os.Exit(1)
	}
}

// run sells three units to four buyers, one of whom never pays.
func run(ctx context.Context, out io.Writer) error {
	db, closeDB, err := openDB()
	if err != nil {
		return err
	}
	defer closeDB()

	clock := time.Now()
	s, err := newShop(db, 15*time.Minute, func() time.Time { return clock })
	if err != nil {
		return err
	}
	if err := db.Create(&Stock{SKU: 42, Remaining: 3}).Error; err != nil {
		return err
	}
	fmt.Fprintln(out, "ann reserves 2:", s.reserve(ctx, "ann", 42, 2))
	fmt.Fprintln(out, "ben reserves 1:", s.reserve(ctx, "ben", 42, 1))
	late := s.reserve(ctx, "cem", 42, 1)
	fmt.Fprintln(out, "cem is too late:", errors.Is(late, stock.ErrInsufficient))
	fmt.Fprintln(out, "ben pays:", s.confirm(ctx, "ben"))
	clock = clock.Add(16 * time.Minute)
	fmt.Fprintln(out, "ann pays after 16 minutes:", s.confirm(ctx, "ann"))
	fmt.Fprintln(out, "the sweep:", s.sweep(ctx))
	fmt.Fprintln(out, "dan reserves 2:", s.reserve(ctx, "dan", 42, 2))
	fmt.Fprintln(out, "dan pays:", s.confirm(ctx, "dan"))
	return nil
}

// openDB makes a SQLite file with the tables.
func openDB() (*gorm.DB, func(), error) {
	dir, err := os.MkdirTemp("", "reservation")
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a folder for SQLite: %w", err)
	}
	const options = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
	file := filepath.Join(dir, "shop.db")
	db, err := gorm.Open(sqlite.Open(file+options), &gorm.Config{Logger: logger.Discard})
	remove := func() {
		if db != nil {
			if pool, err := db.DB(); err == nil {
				_ = pool.Close()
			}
		}
		_ = os.RemoveAll(dir)
	}
	if err == nil {
		err = db.AutoMigrate(&Stock{}, &Reservation{})
	}
	if err != nil {
		remove()
		return nil, nil, fmt.Errorf("cannot make the database: %w", err)
	}
	return db, remove, nil
}
