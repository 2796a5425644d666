package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	declared "github.com/onelane/onelane/gormlock/stock"
)

// ticket is an order of the declared sales. Each buyer gets one of each row.
type ticket struct {
	ID    int64 `gorm:"primaryKey"`
	SKU   int64 `gorm:"uniqueIndex:ticket_once"`
	Buyer int64 `gorm:"uniqueIndex:ticket_once"`
	N     int64 `gorm:"check:ticket_n,n < 1000"`
}

// crowd is who buys in a declared sale.
type crowd struct {
	name, about string
	goroutines  int
	processes   int     // each has a sale and connections of its own
	repeats     float64 // the share of calls by a buyer who has a ticket.
	refused     float64 // the share of orders that the database refuses
	rows        int64   // that are bought from in turn
	soldOut     bool
	atLeast     float64 // times by hand
	longer      int     // times as long as others, because a batch takes long; 0 is 1
}

var crowds = []crowd{
	{name: "", about: "Each buyer buys once.", goroutines: 256, processes: 1, rows: 1, atLeast: 30},
	{name: "-repeats", about: "Half of the calls repeat a buyer.", goroutines: 256, processes: 1, rows: 1, repeats: 0.5, atLeast: 10},
	{name: "-processes", about: "Four processes (four pools of 4 connections, four Sales).", goroutines: 256, processes: 4, rows: 1, atLeast: 10},
	{name: "-refused-1", about: "A CHECK refuses 1 % of the orders.", goroutines: 256, processes: 1, rows: 1, refused: 0.01, atLeast: 1, longer: 3},
	{name: "-refused-10", about: "A CHECK refuses 10 % of the orders.", goroutines: 256, processes: 1, rows: 1, refused: 0.1, atLeast: 1, longer: 3},
	{name: "-lone", about: "One caller alone.", goroutines: 1, processes: 1, rows: 1, atLeast: 1 / 1.1},
	{name: "-rows", about: "10,000 rows in turn.", goroutines: 256, processes: 1, rows: 10_000, atLeast: 0.9},
	{name: "-sold-out", about: "Nothing is left.", goroutines: 64, processes: 1, rows: 1, soldOut: true, atLeast: 100},
}

const (
	byHandName = "conditional UPDATE, 16 connections"
	saleName   = "stock.Sale"
)

// declaredSales are the scenarios of all crowds on one database.
func declaredSales(d database, only ...string) (all []scenario) {
	for _, c := range crowds {
		if len(only) == 0 || c.name == only[0] {
			all = append(all, declaredSale(d, c))
		}
	}
	return all
}

func declaredSale(d database, c crowd) scenario {
	return scenario{
		name: "sale-" + d.String() + c.name,
		about: fmt.Sprintf("%d goroutines buy in %s: the stock and the order, with a unique index on row and buyer, in one transaction. %s A call counts when it is answered. "+
			"By hand it is a conditional UPDATE and an INSERT by GORM. Statements are those with different texts, of which a connection may keep each prepared.", c.goroutines, databases[d.kind].product, c.about),
		columns: []column{{"per s", false}, {"sold per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"µs CPU", true}, {"round trips", true}, {"statements", true}},
		note:    func(ctx context.Context, b *bench) (string, error) { return b.durability(ctx, d) },
		open: func(b *bench) ([]contender, error) {
			return []contender{
				{name: byHandName, kind: theirs, run: func(ctx context.Context, t time.Duration) (sample, error) {
					return c.measure(ctx, b, d, t, 16, 1, buyByHand)
				}},
				{name: saleName, kind: ours, run: func(ctx context.Context, t time.Duration) (sample, error) {
					return c.measure(ctx, b, d, t, 16/c.processes, c.processes, buyBySale)
				}},
			}, nil
		},
		targets: c.targets(d),
	}
}

// targets are what a sale must reach.
func (c crowd) targets(d database) []target {
	all := []target{
		{fmt.Sprintf("at least %.3g × by hand", c.atLeast), times(saleName, byHandName, "per s"), c.atLeast, 0},
		{"at most 100 different statements", func(r result) float64 { return r.of(saleName, "statements") }, 0, 100},
	}
	if d.slower > 0 {
		all = append(all, target{"at least 31,000 a second", func(r result) float64 { return r.of(saleName, "per s") }, 31_000, 0})
	}
	if c.goroutines == 1 {
		all = append(all, target{"no more round trips than by hand", times(saleName, byHandName, "round trips"), 0, 1.01})
	}
	return all
}

// buying is a way to buy one ticket of a database.
type buying func(db *gorm.DB) (func(ctx context.Context, o *ticket) error, error)

func buyByHand(db *gorm.DB) (func(ctx context.Context, o *ticket) error, error) {
	return func(ctx context.Context, o *ticket) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			u := tx.Model(&stock{}).Where("sku = ? AND remaining >= 1", o.SKU).UpdateColumn("remaining", gorm.Expr("remaining - 1"))
			if u.Error == nil && u.RowsAffected == 0 {
				u.Error = errSoldOut
			}
			if u.Error != nil {
				return u.Error
			}
			return tx.Create(o).Error
		})
	}, nil
}

func buyBySale(db *gorm.DB) (func(ctx context.Context, o *ticket) error, error) {
	s, err := declared.NewSale[stock, ticket](db, "remaining", declared.Unique("sku", "buyer"))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, o *ticket) error {
		_, err := s.Sell(ctx, o.SKU, 1, o)
		return err
	}, nil
}

// measure lets the crowd buy for a while, and checks the books.
func (c crowd) measure(ctx context.Context, b *bench, d database, t time.Duration, connections, processes int, way buying) (sample, error) {
	t *= time.Duration(max(1, c.longer))
	var sent statements
	var ways []func(context.Context, *ticket) error
	var db *gorm.DB
	for range processes {
		var err error
		if db, err = openGORM(b, d, connections, &sent); err != nil {
			return nil, err
		}
		defer closeGORM(db)
		if len(ways) == 0 {
			if err := c.stockUp(db); err != nil {
				return nil, err
			}
		}
		buy, err := way(db)
		if err != nil {
			return nil, err
		}
		ways = append(ways, buy)
	}
	goroutines := c.goroutines
	if b.short {
		goroutines = min(goroutines, 16)
	}
	var next, sold atomic.Int64
	op := func(ctx context.Context, worker int) (time.Duration, error) {
		n := next.Add(1)
		o := &ticket{SKU: stockSKU + n%c.rows, Buyer: n}
		if c.repeats > 0 && rand.Float64() < c.repeats {
			o.Buyer = max(1, n-rand.Int64N(1000))
		}
		bad := c.refused > 0 && rand.Float64() < c.refused
		if bad {
			o.N = 5000
		}
		began := time.Now()
		err := ways[worker%len(ways)](ctx, o)
		wait := time.Since(began)
		switch {
		case err == nil:
			sold.Add(1)
		case ctx.Err() != nil:
			return wait, err
		case c.soldOut && (errors.Is(err, errSoldOut) || errors.Is(err, declared.ErrInsufficient)), bad, c.repeats > 0 && isRepeat(err):
		default:
			return 0, fmt.Errorf("a call ended with: %w", err)
		}
		return wait, nil
	}
	if _, err := load(ctx, t/5, goroutines, op); err != nil {
		return nil, err
	}
	before, cpu, soldBefore := sent.n.Load(), b.allCPU(d), sold.Load()
	tally, err := load(ctx, t, goroutines, op)
	if err != nil {
		return nil, err
	}
	cpu = b.allCPU(d) - cpu
	trips := float64(sent.n.Load()-before) / float64(max(tally.held, 1))
	return sample{tally.perSecond(), float64(sold.Load()-soldBefore) / t.Seconds(), tally.wait(50), tally.wait(99), perOp(cpu, tally), trips, float64(sent.different())}, c.balance(db, sold.Load())
}

func isRepeat(err error) bool {
	return errors.Is(err, declared.ErrDuplicate) || isDuplicate(err)
}

func (c crowd) stockUp(db *gorm.DB) error {
	err := errors.Join(db.Migrator().DropTable(&stock{}, &ticket{}), db.AutoMigrate(&stock{}, &ticket{}))
	rows := make([]stock, c.rows)
	for i := range rows {
		rows[i] = stock{SKU: stockSKU + int64(i), Remaining: stockStart}
		if c.soldOut {
			rows[i].Remaining = 0
		}
	}
	return errors.Join(err, db.CreateInBatches(&rows, 1000).Error)
}

func (c crowd) balance(db *gorm.DB, sold int64) error {
	var left, orders int64
	start := c.rows * stockStart
	if c.soldOut {
		start = 0
	}
	err := errors.Join(db.Model(&stock{}).Select("SUM(remaining)").Row().Scan(&left), db.Model(&ticket{}).Count(&orders).Error)
	if err == nil && (start-left != sold || orders != sold) {
		err = fmt.Errorf("the books do not add up: %d sales, %d taken from stock, %d orders", sold, start-left, orders)
	}
	return err
}

// isDuplicate reports whether a server refused a row because of a unique index.
func isDuplicate(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) && state.SQLState() == "23505" {
		return true
	}
	var server *gomysql.MySQLError
	return errors.As(err, &server) && server.Number == 1062
}
