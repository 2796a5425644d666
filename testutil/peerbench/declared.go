package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	gomysql "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	declared "github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/testutil/internal/server"
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
	processes   int     // of this system, which share the goroutines and the connections
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
	{name: "-processes", about: "They are four processes, each with 64 of the goroutines and 4 of the 16 connections, whichever way they buy.", goroutines: 256, processes: 4, rows: 1, atLeast: 10},
	{name: "-refused-1", about: "A CHECK refuses 1 % of the orders.", goroutines: 256, processes: 1, rows: 1, refused: 0.01, atLeast: 1, longer: 3},
	{name: "-refused-10", about: "A CHECK refuses 10 % of the orders.", goroutines: 256, processes: 1, rows: 1, refused: 0.1, atLeast: 1, longer: 3},
	{name: "-lone", about: "One caller alone.", goroutines: 1, processes: 1, rows: 1, atLeast: 1 / 1.1},
	{name: "-rows", about: "10,000 rows in turn.", goroutines: 256, processes: 1, rows: 10_000, atLeast: 0.9},
	{name: "-sold-out", about: "Nothing is left.", goroutines: 64, processes: 1, rows: 1, soldOut: true, atLeast: 100},
}

const (
	byHandName = "conditional UPDATE, 16 connections"
	saleName   = "stock.Sale"
	bareName   = "transactions of 256, no callers"
	tellsName  = "conditional UPDATE, with the promises of a sale"
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
			"By hand it is a conditional UPDATE and an INSERT by GORM. The transactions of 256 wait for nobody, so that is the most that batches of the 256 callers reach. Statements are the different texts with parameters: a connection may keep each of them prepared.", c.goroutines, databases[d.kind].product, c.about),
		columns: []column{{"per s", false}, {"sold per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"µs CPU", true}, {"round trips", true}, {"statements", true}},
		note:    func(ctx context.Context, b *bench) (string, error) { return b.durability(ctx, d) },
		open: func(b *bench) ([]contender, error) {
			var cs []contender
			all := []contender{{name: byHandName, kind: theirs}, {name: saleName, kind: ours}}
			if c.name == "" {
				all = append(all, contender{name: bareName, kind: reference})
			}
			if c.tells(d) {
				all = append(all, contender{name: tellsName, kind: reference})
			}
			for _, way := range all {
				way.run = func(ctx context.Context, t time.Duration) (sample, error) { return c.measure(ctx, b, d, t, way.name) }
				cs = append(cs, way)
			}
			return cs, nil
		},
		targets: c.targets(d),
		limits:  c.limits(d),
	}
}

// tells reports whether the way that promises by hand what a sale promises is worth a row. The
// difference is lost in a batch, and MariaDB tells what is left with the answer to an UPDATE.
func (c crowd) tells(d database) bool {
	return d.kind == server.Postgres && (c.goroutines == 1 || c.rows > 1)
}

func (c crowd) limits(d database) map[string]string {
	if c.tells(d) {
		return map[string]string{saleName: tellsName}
	}
	return map[string]string{saleName: bareName}
}

// targets are what a sale must reach.
func (c crowd) targets(d database) []target {
	all := []target{
		{fmt.Sprintf("at least %.3g × by hand", c.atLeast), times(saleName, byHandName, "per s"), c.atLeast, 0},
		{"at most 100 different statements", func(r result) float64 { return r.of(saleName, "statements") }, 0, 100},
	}
	if c.tells(d) {
		all = append(all, target{fmt.Sprintf("at least %.3g × by hand with the promises of a sale", c.atLeast), times(saleName, tellsName, "per s"), c.atLeast, 0})
	}
	if d.slower > 0 {
		all = append(all, target{"at least 31,000 a second", func(r result) float64 { return r.of(saleName, "per s") }, 31_000, 0})
	}
	if c.goroutines == 1 {
		all = append(all, target{"no more round trips than by hand", times(saleName, byHandName, "round trips"), 0, 1.01})
	}
	return all
}

// ways are the ways to buy tickets of a database.
var ways = map[string]struct {
	open    func(db *gorm.DB) (func(ctx context.Context, o *ticket) error, error)
	tickets int64 // of a call
}{
	byHandName: {buyByHand, 1}, saleName: {buyBySale, 1}, bareName: {buyBare, bareTickets}, tellsName: {buyAndTell, 1},
}

// bareTickets are as many as there are callers at most.
const bareTickets = 256

// buyBare sells full batches without any callers: one transaction after the other. No way that
// commits for 256 callers at a time can sell more.
func buyBare(db *gorm.DB) (func(ctx context.Context, o *ticket) error, error) {
	return func(ctx context.Context, o *ticket) error {
		all := make([]ticket, bareTickets)
		for i := range all {
			all[i] = ticket{SKU: o.SKU, Buyer: o.Buyer*bareTickets + int64(i)}
		}
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			u := tx.Model(&stock{}).Where("sku = ? AND remaining >= ?", o.SKU, bareTickets).UpdateColumn("remaining", gorm.Expr("remaining - ?", bareTickets))
			return errors.Join(u.Error, tx.Create(&all).Error)
		})
	}, nil
}

func buyByHand(db *gorm.DB) (func(ctx context.Context, o *ticket) error, error) {
	return buyWith(db, func(tx *gorm.DB) *gorm.DB { return tx.Model(&stock{}) })
}

// buyAndTell has what a sale promises beside the books. It returns what is left, leaves a connection
// to others, and ends in time. It holds with any isolation level that the server has by default.
func buyAndTell(db *gorm.DB) (func(ctx context.Context, o *ticket) error, error) {
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	buy, err := buyWith(db, func(tx *gorm.DB) *gorm.DB {
		return tx.Model(&stock{}).Clauses(clause.Returning{Columns: []clause.Column{{Name: "remaining"}}})
	}, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	slots := make(chan struct{}, pool.Stats().MaxOpenConnections-1)
	return func(ctx context.Context, o *ticket) error {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		defer func() { <-slots }()
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return buy(ctx, o)
	}, err
}

func buyWith(db *gorm.DB, row func(tx *gorm.DB) *gorm.DB, opts ...*sql.TxOptions) (func(ctx context.Context, o *ticket) error, error) {
	return func(ctx context.Context, o *ticket) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			u := row(tx).Where("sku = ? AND remaining >= 1", o.SKU).UpdateColumn("remaining", gorm.Expr("remaining - 1"))
			if u.Error == nil && u.RowsAffected == 0 {
				u.Error = errSoldOut
			}
			if u.Error != nil {
				return u.Error
			}
			return tx.Create(o).Error
		}, opts...)
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
func (c crowd) measure(ctx context.Context, b *bench, d database, t time.Duration, way string) (sample, error) {
	db, err := openGORM(b, d, 1, &statements{})
	if err != nil {
		return nil, err
	}
	defer closeGORM(db)
	if err := c.stockUp(db); err != nil {
		return nil, err
	}
	t *= time.Duration(max(1, c.longer))
	all, cpu, err := c.shops(ctx, b, d, way, t)
	if err != nil {
		return nil, err
	}
	sum, waits, different := shopReport{}, newWaits(), 0
	for _, r := range all {
		sum.Ops, sum.Held, sum.Sold, sum.Total, sum.Trips = sum.Ops+r.Ops, sum.Held+r.Held, sum.Sold+r.Sold, sum.Total+r.Total, sum.Trips+r.Trips
		different = max(different, r.Statements)
		waits.Merge(hdrhistogram.Import(r.Waits))
	}
	y := tally{ops: sum.Ops, held: sum.Held, time: t, waits: waits}
	trips := float64(sum.Trips) / float64(max(sum.Held, 1))
	return sample{y.perSecond(), float64(sum.Sold) / t.Seconds(), y.wait(50), y.wait(99), perOp(cpu, y), trips, float64(different)}, c.balance(db, sum.Total)
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
