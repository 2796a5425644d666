package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/internal/server"
)

const (
	stockSKU   = 42
	stockKey   = "stock:42"
	stockStart = 1 << 40
	unlimited  = 0 // connections, as database/sql has it by default: one for each goroutine
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

// sell is what every service writes: read, decide, write, and the order in the same transaction. Without a lock it oversells.
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

// buyer is a way to sell under a lock.
type buyer struct {
	name        string
	kind        kind
	connections int
	once        func(ctx context.Context, db *gorm.DB) error
}

// hotRow: one row of stock that everybody wants.
func hotRow(d database, goroutines int) scenario {
	return scenario{
		name: "hot-row-" + d.String(),
		about: fmt.Sprintf("%d goroutines sell from one row of stock in %s: read, decide, write, insert the order, in one transaction by GORM. Connections are unlimited, as by "+
			"default, but where a number is named. Round trips are those to the database, each preparing of a statement included, per sale.", goroutines, databases[d.kind].product),
		columns: []column{{"per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"µs CPU", true}, {"round trips", true}},
		note:    func(ctx context.Context, b *bench) (string, error) { return b.durability(ctx, d) },
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			if b.short {
				goroutines /= 4
			}
			client := redis.NewClient(&redis.Options{Addr: addr})
			l, err := newLocker([]redis.UniversalClient{client})
			if err != nil {
				return nil, err
			}
			var cs []contender
			for _, s := range sellers(client) {
				cs = append(cs, contender{name: s.name, kind: s.kind, run: func(ctx context.Context, t time.Duration) (sample, error) {
					var sent statements
					db, err := openGORM(b, d, s.connections, &sent) // anew, as their connections together are too many
					if err != nil {
						return nil, err
					}
					defer closeGORM(db)
					if s.kind == ours {
						if err := db.Use(gormlock.New(l)); err != nil {
							return nil, err
						}
					}
					s, err := sales(ctx, func() spent { return spent{b.allCPU(d), sent.n.Load()} }, db, t, goroutines, s.once)
					return sample{s.perSecond(), s.wait(50), s.wait(99), s.cpu, s.trips}, err
				}})
			}
			cs[0].close = func() { _, _ = l.Close(), client.Close() }
			return cs, nil
		},
		targets: []target{
			{"Guard: at least 2 × FOR UPDATE", times("gormlock.Guard", forUpdateName, "per s"), 2, 0},
			{"Transaction: at least 2 × FOR UPDATE", times("gormlock.Transaction", forUpdateName, "per s"), 2, 0},
			{"Grouped(32): at least 5 × FOR UPDATE", times("gormlock.Grouped(32)", forUpdateName, "per s"), 5, 0},
		},
	}
}

const forUpdateName = "SELECT … FOR UPDATE"

func sellers(client redis.UniversalClient) []buyer {
	rs := redsyncOn(redsync.New(goredis.NewPool(client)))
	var local sync.Mutex
	transaction := func(fn func(*gorm.DB) error) func(context.Context, *gorm.DB) error {
		return func(ctx context.Context, db *gorm.DB) error { return db.WithContext(ctx).Transaction(fn) }
	}
	return []buyer{
		{forUpdateName, theirs, unlimited, transaction(sellForUpdate)},
		{"… FOR UPDATE, 16 connections", reference, 16, transaction(sellForUpdate)},
		{"conditional UPDATE", reference, unlimited, transaction(sellConditionally)},
		{"redsync around the transaction", theirs, unlimited, func(ctx context.Context, db *gorm.DB) error {
			unlock, err := rs.lock(ctx, stockKey)
			if err != nil {
				return err
			}
			return errors.Join(db.WithContext(ctx).Transaction(sell), unlock(ctx))
		}},
		{"local mutex", reference, unlimited, func(ctx context.Context, db *gorm.DB) error {
			local.Lock()
			defer local.Unlock()
			return db.WithContext(ctx).Transaction(sell)
		}},
		{"gormlock.Guard", ours, unlimited, func(ctx context.Context, db *gorm.DB) error {
			return db.WithContext(ctx).Scopes(gormlock.Guard(stockKey)).Transaction(sell)
		}},
		{"gormlock.Transaction", ours, unlimited, func(ctx context.Context, db *gorm.DB) error {
			return gormlock.Transaction(db.WithContext(ctx), stockKey, sell)
		}},
		{"gormlock.Grouped(32)", ours, unlimited, func(ctx context.Context, db *gorm.DB) error {
			return gormlock.Transaction(db.WithContext(ctx), stockKey, sell, gormlock.Grouped(32))
		}},
	}
}

// spent is what was used so far: CPU time of all that take part, and round trips to the database.
type spent struct {
	cpu   time.Duration
	trips int64
}

// sold is what a way to sell achieves, and what one sale takes: CPU time in µs, and round trips.
type sold struct {
	tally
	cpu, trips float64
}

func sales(ctx context.Context, meter func() spent, db *gorm.DB, d time.Duration, goroutines int,
	once func(context.Context, *gorm.DB) error) (sold, error) {
	if err := restock(db, stockStart); err != nil {
		return sold{}, err
	}
	op := func(ctx context.Context, _ int) (time.Duration, error) {
		began := time.Now()
		err := once(ctx, db)
		return time.Since(began), err
	}
	warm, err := load(ctx, d/5, goroutines, op) // connections
	if err != nil {
		return sold{}, err
	}
	before := meter()
	t, err := load(ctx, d, goroutines, op)
	after := meter()
	if err == nil {
		err = balance(db, warm.held+t.held)
	}
	return sold{t, perOp(after.cpu-before.cpu, t), float64(after.trips-before.trips) / float64(max(t.held, 1))}, err
}

// perOp is the share of one operation in µs.
func perOp(cpu time.Duration, t tally) float64 { return cpu.Seconds() * 1e6 / float64(max(t.held, 1)) }
