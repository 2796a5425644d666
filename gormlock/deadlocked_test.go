package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// lateReads read rows of which a later one ends the transaction, and drop the error. "%d" is the
// number of the error.
var lateReads = map[string]func(tx *gorm.DB, query string){
	"Raw.Scan": func(tx *gorm.DB, query string) { _ = tx.Raw(query).Scan(&[]int{}).Error },
	"Raw.Find": func(tx *gorm.DB, query string) { _ = tx.Raw(query).Find(&[]int{}).Error },
	"Rows": func(tx *gorm.DB, query string) {
		rows, err := tx.Raw(query).Rows()
		if err == nil {
			for rows.Next() {
			}
			_ = rows.Close()
		}
	},
	"Rows that nobody reads": func(tx *gorm.DB, query string) {
		if rows, err := tx.Raw(query).Rows(); err == nil {
			_ = rows.Close()
		}
	},
	"Row":               func(tx *gorm.DB, query string) { _ = tx.Raw(query).Row().Scan(new(int)) },
	"Row nobody scans":  func(tx *gorm.DB, query string) { _ = tx.Raw(query).Row() },
	"prepared Raw.Scan": func(tx *gorm.DB, query string) { _ = tx.Raw(query+" WHERE n > ?", 0).Scan(&[]int{}).Error },
}

// lateDB has a function late, which fails among the rows of a query as a deadlock does. SIGNAL ends
// nothing by itself, so the test sees what a careless block would have committed.
func lateDB(t *testing.T, fn func(t *testing.T, db *gorm.DB, l *core.Locker)) {
	t.Helper()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() != "mysql" {
			return
		}
		ok(t, "CREATE", unprepared(db).Exec("CREATE FUNCTION late(n int, number int) RETURNS int DETERMINISTIC BEGIN "+
			"IF n > 1 THEN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = number; END IF; RETURN n; END").Error)
		fn(t, db, l)
	})
}

func lateQuery(number int) string {
	return fmt.Sprintf("SELECT late(n, %d) FROM (SELECT 1 AS n UNION ALL SELECT 2) numbers", number)
}

// TestEnded_WhileRowsAreRead: nothing is written after the error, whoever drops it.
func TestEnded_WhileRowsAreRead(t *testing.T) {
	t.Parallel()
	lateDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		const stayOpen = "Rows that stay open"
		reads := maps.Clone(lateReads)
		reads[stayOpen] = func(tx *gorm.DB, query string) { _, _ = tx.Raw(query).Rows() }
		for name, read := range reads {
			for _, writes := range []bool{true, false} { // after it; or COMMIT is what follows
				if writes && name == stayOpen {
					continue // the driver cannot send it
				}
				fn := func(tx *gorm.DB) error {
					ok(t, "before it", take(tx, 42))
					read(tx, lateQuery(1213))
					if writes && take(tx, 42) == nil {
						t.Errorf("%s: a statement was sent", name)
					}
					return nil
				}
				_, once := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (int, error) { return 0, fn(tx) },
					gormlock.WithRetry(1))
				errs := map[string]error{
					"block":       db.Scopes(gormlock.Guard("k")).Transaction(fn),
					"Transaction": gormlock.Transaction(db, "k", fn),
					"Once":        once,
				}
				for form, err := range errs {
					if err == nil || errors.Is(err, gormlock.ErrCommitUnknown) {
						t.Errorf("%s in %s: got %v", name, form, err)
					}
				}
				eventually(t, "idle", func() bool { return !held(t, l, "k") && inUse(t, db) == 0 })
				wantLeft(t, db, 42, 10)
			}
		}
	})
}

// TestEnded_RowsThatAreFine: rows that were read, closed early or left open end nothing.
func TestEnded_RowsThatAreFine(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		const query = "SELECT sku FROM stocks ORDER BY sku"
		ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			for name, read := range lateReads {
				if name != "prepared Raw.Scan" {
					read(tx, query)
				}
				ok(t, name, take(tx, 42))
			}
			var sku int
			var none, name any
			ok(t, "Row", tx.Raw(query).Row().Scan(&sku))
			ok(t, "Row", tx.Raw("SELECT NULL, name FROM stocks").Row().Scan(&none, &name))
			if sku != 42 || none != nil || fmt.Sprintf("%s", name) != "thing" {
				t.Errorf("Row: %v %v %v", sku, none, name)
			}
			_, err := tx.Raw(query).Rows() // left open
			return err
		}))
		wantLeft(t, db, 42, 10-int64(len(lateReads)))
		wantIdle(t, db, l, "k")
	})
}

// lockWaits fail as a lock wait that timed out does.
var lockWaits = map[string]func(tx *gorm.DB){
	"Exec":     func(tx *gorm.DB) { _ = unprepared(tx).Exec("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205").Error },
	"Raw.Scan": func(tx *gorm.DB) { _ = tx.Raw(lateQuery(1205)).Scan(&[]int{}).Error },
}

// rollBackOnTimeout lets a server say that it has the setting innodb_rollback_on_timeout, or what
// it says by itself.
func (p *proxy) rollBackOnTimeout(on bool) {
	const setting = "@@innodb_rollback_on_timeout"
	p.mu.Lock()
	defer p.mu.Unlock()
	p.edit = [2]string{}
	if on {
		p.edit = [2]string{setting, fmt.Sprintf("%-*s", len(setting), "1")}
	}
}

// TestEnded_LockWaitTimeout: it ends the statement or the transaction, as the server is set.
func TestEnded_LockWaitTimeout(t *testing.T) {
	t.Parallel()
	lateDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		proxied, p := behindProxy(t, db)
		l := locker(t, backendtest.Memory())
		ok(t, "Use", proxied.Use(gormlock.New(l)))
		left := int64(10)
		for name, wait := range lockWaits {
			for _, rollsBack := range []bool{false, true} {
				p.rollBackOnTimeout(rollsBack)
				err := gormlock.Transaction(proxied, "k", func(tx *gorm.DB) error {
					ok(t, "before it", take(tx, 42))
					wait(tx)
					if sent := take(tx, 42) == nil; sent == rollsBack {
						t.Errorf("%s: rolls back %v, a statement was sent: %v", name, rollsBack, sent)
					}
					return nil
				})
				if !rollsBack {
					left -= 2
				}
				if (err != nil) != rollsBack {
					t.Errorf("%s: rolls back %v: %v", name, rollsBack, err)
				}
				wantLeft(t, db, 42, left)
			}
		}
	})
}

// TestOnce_DeadlockWhileReading is a real one: the function drops the error of its read and goes on.
// Once runs it again, and there is one payment.
func TestOnce_DeadlockWhileReading(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() != "mysql" {
			return
		}
		put(t, db, 43, 10)
		for name, read := range map[string]func(tx *gorm.DB) error{
			"Raw.Scan": func(tx *gorm.DB) error {
				return tx.Raw("SELECT * FROM stocks WHERE id > 1 FOR UPDATE").Scan(&Stock{}).Error
			},
			"Take": func(tx *gorm.DB) error {
				return tx.Clauses(clause.Locking{Strength: "UPDATE"}).Take(&Stock{}, 2).Error
			},
		} {
			before := orders(t, db)
			other := db.Begin()
			ok(t, "other", other.Error)
			ok(t, "other", take(other, 43))
			for range 50 { // heavier, so that it is not the victim
				ok(t, "other", other.Create(&Item{StockID: 2, Name: "heavy"}).Error)
			}
			done, runs := make(chan error, 1), 0
			pay := func(tx *gorm.DB) (receipt, error) {
				if runs++; runs == 1 {
					ok(t, "take", take(tx, 42))
					go func() { done <- errors.Join(take(other, 42), other.Rollback().Error) }()
					awaitLockWait(t, db)
				}
				if err := read(tx); (err != nil) != (runs == 1) {
					t.Errorf("%s: run %d: %v", name, runs, err)
				}
				return charge(tx)
			}
			_, err := gormlock.Once(t.Context(), db, name, pay)
			ok(t, name, err)
			_, err = gormlock.Once(t.Context(), db, name, pay)
			ok(t, name, err)
			ok(t, "other", <-done)
			if n := orders(t, db) - before; n != 1 || runs != 2 {
				t.Errorf("%s: %d payments in %d runs, want 1 in 2", name, n, runs)
			}
			wantLeft(t, db, 42, 10)
		}
	})
}

// awaitLockWait waits until a transaction of this database waits for a row. InnoDB renews
// its list only if nobody has read it for 100 ms, so tests that wait at once ask at random times.
func awaitLockWait(t *testing.T, db *gorm.DB) {
	t.Helper()
	free := db.Session(&gorm.Session{NewDB: true, Context: context.Background()})
	eventually(t, "another transaction waits", func() bool {
		var n int
		if db.Name() == "postgres" {
			ok(t, "pg_stat_activity", free.Raw("SELECT COUNT(*) FROM pg_stat_activity "+
				"WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n).Error)
			return n > 0
		}
		time.Sleep(150*time.Millisecond + rand.N(450*time.Millisecond))
		ok(t, "innodb_trx", free.Raw("SELECT COUNT(*) FROM information_schema.innodb_trx t "+
			"JOIN "+processlist(t, db)+" p ON p.id = t.trx_mysql_thread_id "+
			"WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()").Scan(&n).Error)
		return n > 0
	})
}
