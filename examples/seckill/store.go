package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/glebarez/sqlite"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

const sku = 42

// Stock is how many units are left.
type Stock struct {
	SKU  int64 `gorm:"primaryKey;autoIncrement:false"`
	Left int
}

// TableName keeps the example's tables apart from others in a shared database.
func (Stock) TableName() string { return "seckill_stock" }

// Order is one unit sold. Nothing in the table forbids two orders of one buyer, because the example
// shows who prevents them.
type Order struct {
	ID    uint64 `gorm:"primaryKey"`
	SKU   int64
	Buyer string `gorm:"size:64;index"`
}

// TableName keeps the example's tables apart from others in a shared database.
func (Order) TableName() string { return "seckill_orders" }

const patience = 15 * time.Second // for servers to answer at the start, on a busy machine, too

// embedServers starts what was not named: a Redis inside this process, and a SQLite file in a
// temporary folder.
func embedServers(o *options) (stop func(), err error) {
	stops := []func(){}
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	embed := func(addr *string) error {
		m, err := embedRedis()
		if err == nil {
			stops, *addr = append(stops, m.Close), m.Addr()
		}
		return err
	}
	if o.redis == "" && o.etcd == "" && o.zookeeper == "" {
		if err := embed(&o.redis); err != nil {
			return stop, err
		}
	}
	if o.records == "" && strings.Contains(o.redis, ",") {
		if err := embed(&o.records); err != nil {
			return stop, err
		}
	}
	if o.db == "" {
		dir, err := os.MkdirTemp("", "seckill")
		if err != nil {
			return stop, fmt.Errorf("cannot make a folder for SQLite: %w", err)
		}
		stops, o.db = append(stops, func() { _ = os.RemoveAll(dir) }), "sqlite:"+filepath.Join(dir, "sale.db")
	}
	return stop, nil
}

func embedRedis() (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
	}
	expire(m)
	return m, nil
}

// expire makes keys of the embedded Redis expire: the clock of that server stands still by itself.
// A move looks at all keys, so the clock moves ten times a second at most. It moves before a
// command runs: after a quiet time, what the command sets must not expire at once.
func expire(m *miniredis.Miniredis) {
	const tick = 100 * time.Millisecond
	var mu sync.Mutex
	last := time.Now()
	m.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
		if !m.TryLock() {
			return false // a script runs, and this may be one of its commands
		}
		m.Unlock()
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(last) >= tick {
			m.FastForward(now.Sub(last))
			last = now
		}
		return false
	})
}

// openDB opens the database of -db and checks that it answers.
func openDB(ctx context.Context, spec string) (*gorm.DB, error) {
	kind, dsn, ok := strings.Cut(spec, ":")
	var d gorm.Dialector
	conns := 32
	switch {
	case ok && kind == "sqlite" && dsn != "":
		d = sqlite.Open(dsn + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
		conns = 8
	case ok && kind == "mysql" && dsn != "":
		d = mysql.Open(dsn)
	case ok && kind == "postgres" && dsn != "":
		d = postgres.Open(dsn)
	default:
		return nil, fmt.Errorf("-db %q: it must be sqlite:FILE, mysql:DSN or postgres:DSN", spec)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	db, err := gorm.Open(d, &gorm.Config{PrepareStmt: true, Logger: logger.Discard})
	if err != nil {
		return nil, fmt.Errorf("the %s database does not answer: %w", kind, err)
	}
	pool, err := db.DB()
	if err == nil {
		pool.SetMaxOpenConns(conns)
		pool.SetMaxIdleConns(conns)
		err = pool.PingContext(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("the %s database does not answer: %w", kind, err)
	}
	return db, nil
}

func closeDB(db *gorm.DB) {
	if pool, err := db.DB(); err == nil {
		_ = pool.Close()
	}
}

// prepare makes the tables of a new sale.
func prepare(db *gorm.DB, stock int) error {
	err := db.AutoMigrate(&Stock{}, &Order{})
	if err == nil {
		all := db.Session(&gorm.Session{AllowGlobalUpdate: true})
		err = errors.Join(all.Delete(&Stock{}).Error, all.Delete(&Order{}).Error, db.Create(&Stock{SKU: sku, Left: stock}).Error)
	}
	if err != nil {
		return fmt.Errorf("cannot make the tables: %w", err)
	}
	return nil
}
