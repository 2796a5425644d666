package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
)

// world is what the services share: a Redis, a database and the payment provider.
type world struct {
	redis    string
	dbFile   string
	db       *gorm.DB
	provider *provider
	stops    []func()
}

func (w *world) close() {
	for _, stop := range slices.Backward(w.stops) {
		stop()
	}
}

func newWorld() (w *world, err error) {
	w = &world{}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
	}
	w.redis = m.Addr()
	w.stops = append(w.stops, m.Close, expire(m))
	w.provider = newProvider()
	w.stops = append(w.stops, w.provider.Close)
	dir, err := os.MkdirTemp("", "idempotentapi")
	if err != nil {
		return nil, fmt.Errorf("cannot make a folder for SQLite: %w", err)
	}
	w.dbFile = filepath.Join(dir, "payments.db")
	w.stops = append(w.stops, func() { _ = os.RemoveAll(dir) })
	if w.db, err = openDB(w.dbFile); err != nil {
		return nil, err
	}
	w.stops = append(w.stops, func() { closeDB(w.db) })
	if err := errors.Join(w.db.AutoMigrate(&Charge{}), gormlock.Migrate(w.db)); err != nil {
		return nil, fmt.Errorf("cannot make the tables: %w", err)
	}
	return w, nil
}

// expire makes keys of the embedded Redis expire. By itself its clock stands still.
func expire(m *miniredis.Miniredis) (stop func()) {
	const tick = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for last := time.Now(); ctx.Err() == nil; {
			time.Sleep(tick)
			now := time.Now()
			m.FastForward(now.Sub(last))
			last = now
		}
	}()
	return func() { cancel(); <-done }
}

func openDB(file string) (*gorm.DB, error) {
	db, err := gorm.Open(sqlite.Open(file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, fmt.Errorf("cannot open SQLite: %w", err)
	}
	return db, nil
}

func closeDB(db *gorm.DB) {
	if pool, err := db.DB(); err == nil {
		_ = pool.Close()
	}
}

// charges returns how often each customer with this prefix was charged, by the provider or in the
// database.
func (w *world) charges(prefix string) (map[string]int, error) {
	var rows []struct {
		Customer string
		N        int
	}
	err := w.db.Model(&Charge{}).Select("customer, count(*) AS n").Where("customer LIKE ?", prefix+"%").Group("customer").Scan(&rows).Error
	counts := w.provider.counts(prefix)
	for _, r := range rows {
		counts[r.Customer] += r.N
	}
	return counts, err
}
