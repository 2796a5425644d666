package stock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/internal/claim"
)

// faulty is a connection pool that counts transactions and keeps their statements, and fails as told.
type faulty struct {
	gorm.ConnPool
	begins     atomic.Int64
	begin      func() error                    // before BEGIN
	commit     func(tx gorm.TxCommitter) error // instead of COMMIT
	statement  func(query string) error        // before each statement
	hangs      bool                            // an INSERT waits for the end of its time
	says       error                           // what the INSERT that has waited returns
	mu         sync.Mutex
	statements []string
}

// through returns db with f between it and its connections.
func through(db *gorm.DB, f *faulty) *gorm.DB {
	db = db.Session(&gorm.Session{NewDB: true, Context: context.Background()})
	f.ConnPool = db.ConnPool
	if prepared, ok := f.ConnPool.(*gorm.PreparedStmtDB); ok {
		f.ConnPool = prepared.ConnPool
	}
	db.ConnPool, db.Statement.ConnPool = f, f
	return db
}

// GetDBConn implements gorm.GetDBConnector.
func (f *faulty) GetDBConn() (*sql.DB, error) { return f.ConnPool.(*sql.DB), nil }

func (f *faulty) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	f.begins.Add(1)
	if f.begin != nil {
		if err := f.begin(); err != nil {
			return nil, err
		}
	}
	f.note(ctx, "BEGIN")
	tx, err := f.ConnPool.(gorm.TxBeginner).BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &faultyTx{tx, f}, nil
}

func (f *faulty) note(ctx context.Context, query string) error {
	f.mu.Lock()
	f.statements = append(f.statements, query)
	f.mu.Unlock()
	if f.hangs && strings.HasPrefix(query, "INSERT") {
		if deadline, _ := ctx.Deadline(); f.says != nil { // drivers need not wait for the context
			time.Sleep(time.Until(deadline))
			return f.says
		}
		<-ctx.Done()
	}
	if f.statement != nil {
		return f.statement(query)
	}
	return nil
}

func (f *faulty) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.statements = nil }()
	return f.statements
}

type faultyTx struct {
	*sql.Tx
	f *faulty
}

func (t *faultyTx) Commit() error {
	if t.f.commit != nil {
		return t.f.commit(t.Tx)
	}
	return t.Tx.Commit()
}

func (t *faultyTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := t.f.note(ctx, query); err != nil {
		return nil, err
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *faultyTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.f.note(ctx, query); err != nil {
		return nil, err
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

// stateError is a server's error with an SQLSTATE.
type stateError string

func (e stateError) Error() string    { return "state " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// plains are orders of Plain for some buyers.
func plains(n int) (all []*Plain) {
	for i := range n {
		all = append(all, &Plain{SKU: 42, Buyer: int64(i + 1)})
	}
	return all
}

func orders(n int) (all []*Order) {
	for i := range n {
		all = append(all, &Order{SKU: 42, Buyer: int64(i + 1)})
	}
	return all
}

// TestSale_CommitUnknown: nobody sells again or splits, and nobody gets ErrDuplicate.
func TestSale_CommitUnknown(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		cut := errors.New("connection reset by peer")
		for name, done := range map[string]bool{"done": true, "not done": false} {
			f := &faulty{commit: func(tx gorm.TxCommitter) error {
				if done {
					ok(t, "Commit", tx.Commit())
				} else {
					ok(t, "Rollback", tx.Rollback())
				}
				return cut
			}}
			fresh(t, db, 1000, &Plain{}, &Order{})
			s := newSale[Order](t, through(db, f), unique)
			for _, n := range []int{8, 1} {
				f.begins.Store(0)
				before := left(t, db)
				all := orders(n)
				for i := range all {
					all[i].Buyer += int64(100 * n)
				}
				for _, x := range together(t, db, s, one, all...) {
					if want(t, name, x.err, stock.ErrCommitUnknown); claim.NothingDone(x.err) {
						t.Errorf("%s: %v says that nothing was done", name, x.err)
					}
					if want(t, name, x.err, cut); x.order.ID != 0 {
						t.Errorf("%s: the order got the id %d", name, x.order.ID)
					}
				}
				if f.begins.Load() != 1 {
					t.Errorf("%s: %d transactions", name, f.begins.Load())
				}
				sold := int64(0)
				if done {
					sold = int64(n)
				}
				if taken := before - left(t, db); taken != sold {
					t.Errorf("%s: %d were taken", name, taken)
				}
			}
		}
	})
}

// TestSale_CommitConflict: a sure rollback at COMMIT because of others is tried again.
func TestSale_CommitConflict(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		var commits atomic.Int64
		f := &faulty{commit: func(tx gorm.TxCommitter) error {
			if commits.Add(1) == 1 {
				ok(t, "Rollback", tx.Rollback())
				return stateError("40001")
			}
			return tx.Commit()
		}}
		s := newSale[Plain](t, through(db, f))
		for _, x := range together(t, db, s, one, plains(8)...) {
			ok(t, "Sell", x.err)
		}
		if commits.Load() != 2 {
			t.Errorf("%d COMMITs", commits.Load())
		}
		wantBooks[Plain](t, db, 1000, 8)
	})
}

// TestSale_CommitRefused: a deferred constraint refuses at COMMIT, and costs only its caller.
func TestSale_CommitRefused(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		switch db.Name() {
		case "mysql":
			return // its constraints are checked at once
		case "postgres":
			ok(t, "Exec", db.Exec("ALTER TABLE plains ADD CONSTRAINT late UNIQUE (buyer) DEFERRABLE INITIALLY DEFERRED").Error)
		case "sqlite":
			ok(t, "Exec", db.Exec("CREATE TABLE buyers (id integer primary key)").Error)
			ok(t, "Exec", db.Exec("INSERT INTO buyers VALUES (1), (2), (3), (4)").Error)
			ok(t, "Exec", db.Exec("DROP TABLE plains").Error)
			ok(t, "Exec", db.Exec("CREATE TABLE plains (id integer primary key autoincrement, sku integer, "+
				"buyer integer REFERENCES buyers(id) DEFERRABLE INITIALLY DEFERRED)").Error)
			pool, _ := db.DB()
			pool.SetMaxOpenConns(1)
			ok(t, "Exec", db.Exec("PRAGMA foreign_keys = ON").Error)
		}
		s := newSale[Plain](t, db)
		all := plains(4)
		all[2].Buyer = 99
		if db.Name() == "postgres" {
			ok(t, "Create", db.Create(&Plain{SKU: 1, Buyer: 99}).Error)
			ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("remaining", 1001).Error)
		}
		for i, x := range together(t, db, s, one, all...) {
			if (x.err == nil) == (i == 2) || errors.Is(x.err, stock.ErrCommitUnknown) {
				t.Errorf("%d: %v", i, x)
			}
		}
		if rest := left(t, db); rest != 997 && rest != 998 {
			t.Errorf("%d are left", rest)
		}
		// The connection has no open transaction.
		_, err := s.Sell(t.Context(), 42, 1, &Plain{SKU: 42, Buyer: 1 + int64(len("x"))*0})
		if db.Name() == "sqlite" {
			ok(t, "a later sale", err)
		}
	})
}

// TestSale_DatabaseDown: a failed BEGIN is nobody's order: one attempt for the whole batch.
func TestSale_DatabaseDown(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		gone := errors.New("connection refused")
		f := &faulty{begin: func() error { return gone }}
		fresh(t, db, 1000, &Plain{})
		s := newSale[Plain](t, through(db, f))
		for _, x := range together(t, db, s, one, plains(64)...) {
			if want(t, "Sell", x.err, gone); !strings.Contains(x.err.Error(), "nothing was done") || !claim.NothingDone(x.err) {
				t.Errorf("%v", x.err)
			}
		}
		if f.begins.Load() != 1 {
			t.Errorf("%d attempts", f.begins.Load())
		}
		f.begin = nil // it is back
		f.begins.Store(0)
		for _, x := range together(t, db, s, one, plains(64)...) {
			ok(t, "Sell", x.err)
		}
		wantBooks[Plain](t, db, 1000, 64)
		// It goes down while a refused batch is sold: no more than one transaction for it.
		f.begins.Store(0)
		f.statement = func(query string) error {
			if strings.HasPrefix(query, "INSERT") {
				f.begin = func() error { return gone }
				return errors.New("unexpected EOF")
			}
			return nil
		}
		for _, x := range together(t, db, s, one, plains(64)...) {
			want(t, "Sell", x.err, gone)
		}
		if f.begins.Load() != 2 {
			t.Errorf("%d attempts", f.begins.Load())
		}
		wantBooks[Plain](t, db, 1000, 64)
	})
}

// TestSale_Unavailable: a server that is busy or goes down fails the batch at once. No order is to
// blame.
func TestSale_Unavailable(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		lockWait := &mysql.MySQLError{Number: 1205, SQLState: [5]byte([]byte("HY000"))}
		for _, gone := range []error{stateError("08006"), stateError("25P02"), stateError("53100"), stateError("57P01"), lockWait} {
			f := &faulty{statement: func(query string) error {
				if strings.HasPrefix(query, "INSERT") {
					return gone
				}
				return nil
			}}
			for _, x := range together(t, db, newSale[Plain](t, through(db, f)), one, plains(8)...) {
				want(t, "Sell", x.err, gone)
			}
			if f.begins.Load() != 1 {
				t.Errorf("%v: %d transactions", gone, f.begins.Load())
			}
		}
		wantBooks[Plain](t, db, 1000, 0)
	})
}

// TestSale_Conflict: a deadlock is tried again, three times at most.
func TestSale_Conflict(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		f := &faulty{}
		var inserts atomic.Int64
		f.statement = func(query string) error {
			if strings.HasPrefix(query, "INSERT") && inserts.Add(1) < 3 {
				return stateError("40P01")
			}
			return nil
		}
		s := newSale[Plain](t, through(db, f))
		for _, x := range together(t, db, s, one, plains(8)...) {
			ok(t, "Sell", x.err)
		}
		inserts.Store(-100)
		f.begins.Store(0)
		for _, x := range together(t, db, s, one, plains(8)...) {
			want(t, "Sell", x.err, stateError("40P01"))
		}
		if f.begins.Load() != 3 {
			t.Errorf("%d transactions", f.begins.Load())
		}
		wantBooks[Plain](t, db, 1000, 8)
	})
}

// TestSale_LockFirst: the first statement of each transaction locks the row. Before the first one,
// the sale asks PostgreSQL for its default level.
func TestSale_LockFirst(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Order{})
		f := &faulty{}
		s := newSale[Order](t, through(db, f), unique)
		for range 3 { // plain, refused, with the look
			together(t, db, s, one, orders(8)...)
		}
		all := f.seen()
		if len(all) == 0 {
			t.Error("no statement was seen")
		}
		for i, query := range all {
			if query != "BEGIN" {
				continue
			}
			next := all[i+1]
			if i == 0 && db.Name() == "postgres" {
				next = all[i+2]
			}
			if !strings.HasPrefix(next, "UPDATE") && !strings.HasSuffix(next, "FOR UPDATE") {
				t.Errorf("the first statement is %s", next)
			}
		}
		wantBooks[Order](t, db, 1000, 8)
	})
}
