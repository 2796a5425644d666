package gormlock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestGrouped_DeadlockOfOneCaller: MariaDB and MySQL roll back everything, and nothing that comes after in the function
// may be written; PostgreSQL only what the caller did.
func TestGrouped_DeadlockOfOneCaller(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() == "sqlite" {
			return // which has one writer
		}
		for sku := range 20 {
			put(t, db, sku, 10)
		}
		other := db.Begin()
		defer other.Rollback()
		if db.Name() == "postgres" { // who looks for deadlocks first is the victim; on MariaDB, who wrote less
			ok(t, "SET", other.Exec("SET LOCAL deadlock_timeout = '60s'").Error)
		}
		for sku := 5; sku < 20; sku++ {
			ok(t, "Update", other.Session(&gorm.Session{NewDB: true}).Model(&Stock{}).Where("sku = ?", sku).Update("name", "other").Error)
		}
		done := make(chan error, 1)
		before := taker(1)
		victim := &caller{fn: func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 2))
			go func() { done <- take(other, 2) }()
			awaitLockWait(t, db) // PostgreSQL looks for a deadlock once, soon after we begin to wait
			err := take(tx, 5)
			if err == nil {
				t.Error("no deadlock")
			}
			if db.Name() == "mysql" { // a careless function, which must not write outside of any transaction
				if tx.Session(&gorm.Session{NewDB: true}).Create(&Stock{SKU: 99}).Error == nil {
					t.Error("a statement after the deadlock was sent")
				}
				return nil
			}
			return err
		}}
		later := taker(3)
		together(t, db, l, before, victim, later)
		ok(t, "the other transaction", <-done)
		ok(t, "the other transaction", other.Commit().Error)
		if victim.err == nil {
			t.Error("the victim succeeded")
		}
		ok(t, "later: in the same group or the next", later.err)
		wantLeft(t, db, 3, 9)
		if db.Name() == "postgres" {
			ok(t, "before", before.err)
			wantLeft(t, db, 1, 9)
		} else {
			if before.err == nil || errors.Is(before.err, gormlock.ErrCommitUnknown) {
				t.Errorf("before: %v", before.err)
			}
			wantLeft(t, db, 1, 10)
		}
		var n int64
		ok(t, "Count", db.Model(&Stock{}).Where("sku = ?", 99).Count(&n).Error)
		if n != 0 {
			t.Error("the function wrote outside of the transaction")
		}
		wantLeft(t, db, 2, 9) // by the other one
	})
}

// TestGrouped_TransactionIsGone: errors that say so end the group; nobody succeeds.
func TestGrouped_TransactionIsGone(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() != "mysql" {
			return
		}
		put(t, db, 42, 10)
		for _, number := range []int{1020, 1206, 1213} {
			before := taker(42)
			gone := &caller{fn: func(tx *gorm.DB) error {
				_ = tx.Exec(fmt.Sprintf("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = %d", number)).Error
				if take(tx, 42) == nil {
					t.Errorf("%d: a statement was sent", number)
				}
				return nil
			}}
			after := taker(42)
			together(t, db, l, before, gone, after)
			if before.err == nil || gone.err == nil || errors.Is(before.err, gormlock.ErrCommitUnknown) {
				t.Errorf("%d: before %v, gone %v", number, before.err, gone.err)
			}
			ok(t, "after", after.err)
		}
		wantLeft(t, db, 42, 7)
		// Among the rows of a query it comes after some of them, and a careless function does not look.
		ok(t, "CREATE", unprepared(db).Exec("CREATE FUNCTION late(n int) RETURNS int DETERMINISTIC BEGIN "+
			"IF n > 1 THEN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1213; END IF; RETURN n; END").Error)
		late := &caller{fn: func(tx *gorm.DB) error {
			rows, err := tx.Raw("SELECT late(n) FROM (SELECT 1 AS n UNION ALL SELECT 2) numbers").Rows()
			ok(t, "Rows", err)
			for rows.Next() {
			}
			if rows.Err() == nil || take(tx, 42) == nil {
				t.Error("late: a statement was sent")
			}
			return nil
		}}
		early := taker(42)
		together(t, db, l, early, late)
		if early.err == nil || late.err == nil {
			t.Errorf("late: before %v, itself %v", early.err, late.err)
		}
		wantLeft(t, db, 42, 7)
		// 1205 ends the statement, or the transaction, as the server is set.
		waited := &caller{fn: func(tx *gorm.DB) error {
			_ = take(tx, 42)
			_ = tx.Exec("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205").Error
			if take(tx, 42) == nil {
				t.Error("1205: a statement was sent")
			}
			return nil
		}}
		before, after := taker(42), taker(42)
		together(t, db, l, before, waited, after)
		ok(t, "before", before.err)
		ok(t, "after", after.err)
		if waited.err == nil {
			t.Error("1205: it succeeded")
		}
		wantLeft(t, db, 42, 5)
	})
}

// unseen runs a statement past the plugin, which refuses those that end a transaction.
func unseen(tx *gorm.DB, statement string) error {
	_, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, statement)
	return err
}

// TestGrouped_EndedInTheMiddle: a function ends the transaction past the plugin, by DDL on MariaDB or MySQL, or by COMMIT. The
// callers before it are not told success.
func TestGrouped_EndedInTheMiddle(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		boom := errors.New("boom")
		enders := map[string]string{"COMMIT": "COMMIT", "ROLLBACK": "ROLLBACK"}
		if db.Name() == "mysql" {
			enders["DDL"] = "CREATE TABLE ended (id int)"
			enders["DDL that fails"] = "CREATE TABLE stocks (id int)"
		} else { // the driver for MySQL takes one statement at a time
			enders["a COMMIT behind another statement"] = "SELECT 1; COMMIT"
		}
		for name, statement := range enders {
			for _, returned := range []error{nil, boom} {
				before := taker(42)
				ender := &caller{fn: func(tx *gorm.DB) error { _ = unseen(tx, statement); return returned }}
				after := taker(42)
				together(t, db, l, before, ender, after)
				want(t, name+": before", before.err, gormlock.ErrCommitUnknown)
				want(t, name+": itself", ender.err, gormlock.ErrCommitUnknown)
				if returned != nil {
					want(t, name+": itself", ender.err, returned)
				}
				ok(t, name+": after", after.err)
			}
			_ = db.Migrator().DropTable("ended")
		}
	})
}

// TestGrouped_EndedInTheMiddleOfAFailure: it is unknown also when the group fails of something else, before anybody could see
// that its transaction was ended.
func TestGrouped_EndedInTheMiddleOfAFailure(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		n := int64(10)
		enders := map[string]bool{"COMMIT": true, "SELECT 1;\n": false, "UPDATE stocks SET name = 'x'": false, "SAVEPOINT x": false,
			"/* now */ COMMIT": true}
		if db.Name() == "mysql" {
			enders["CREATE TABLE ended (id int)"], enders["\n(select 1)"] = true, false
		} else { // the driver for MySQL takes one statement at a time
			enders["SELECT 1; COMMIT"], enders["CREATE TABLE ended (id int)"] = true, false
		}
		for statement, ends := range enders {
			before := taker(42)
			ender := &caller{fn: func(tx *gorm.DB) error {
				ok(t, statement, unseen(tx, statement))
				_ = tx.Transaction(func(*gorm.DB) error { return errors.New("back to its savepoint") })
				gormlock.EndGroups(db)
				<-tx.Statement.Context.Done()
				return nil
			}}
			togetherWithin(t, db, l, time.Minute, before, ender)
			for name, err := range map[string]error{"before": before.err, "itself": ender.err} {
				if err == nil || errors.Is(err, gormlock.ErrCommitUnknown) != ends {
					t.Errorf("%s: %s: %v", statement, name, err)
				} else if !ends && !strings.Contains(err.Error(), "shorten the functions") {
					t.Errorf("%s: %s: the error does not say what to do: %v", statement, name, err)
				}
			}
			if ends {
				n--
			}
			wantLeft(t, db, 42, n)
		}
		// The work before an existing savepoint is not in doubt.
		earlier := &caller{fn: func(tx *gorm.DB) error { return tx.Exec("SET @x = 1").Error }}
		if db.Name() != "mysql" {
			return
		}
		slow := &caller{fn: func(tx *gorm.DB) error {
			gormlock.EndGroups(db)
			<-tx.Statement.Context.Done()
			return nil
		}}
		for _, undone := range []error{nil, errors.New("boom")} {
			earlier := &caller{fn: func(tx *gorm.DB) error { return errors.Join(earlier.fn(tx), undone) }}
			before := taker(42)
			togetherWithin(t, db, l, time.Minute, before, earlier, slow)
			if before.err == nil || errors.Is(before.err, gormlock.ErrCommitUnknown) {
				t.Errorf("%v: %v", undone, before.err)
			}
		}
	})
}

// TestGrouped_ErrorNotReturned: PostgreSQL refuses everything after an error; a function that hides it fails alone.
func TestGrouped_ErrorNotReturned(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		before, after := taker(42), taker(42)
		hiding := &caller{fn: func(tx *gorm.DB) error {
			_ = take(tx, 42)
			_ = tx.Session(&gorm.Session{NewDB: true}).Create(&Stock{SKU: 42}).Error
			return nil
		}}
		together(t, db, l, before, hiding, after)
		ok(t, "before", before.err)
		ok(t, "after", after.err)
		if db.Name() != "postgres" { // elsewhere the statement alone was undone
			ok(t, "hiding", hiding.err)
			wantLeft(t, db, 42, 7)
			return
		}
		var state interface{ SQLState() string }
		if !errors.As(hiding.err, &state) || state.SQLState() != "25P02" {
			t.Errorf("got %v, want 25P02", hiding.err)
		}
		wantLeft(t, db, 42, 8)
	})
}

// TestGrouped_ConnectionBreaks: the server ends the connection in the middle: nobody succeeds, nothing is unknown.
func TestGrouped_ConnectionBreaks(t *testing.T) {
	t.Parallel()
	kill := map[string][2]string{
		"mysql":    {"SELECT CONNECTION_ID()", "KILL %d"},
		"postgres": {"SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)"},
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		how, found := kill[db.Name()]
		if !found {
			return
		}
		put(t, db, 42, 10)
		for _, hide := range []bool{false, true} {
			before, after := taker(42), taker(42)
			broken := &caller{fn: func(tx *gorm.DB) error {
				var id int
				ok(t, "id", tx.Raw(how[0]).Row().Scan(&id))
				ok(t, "kill", db.Session(&gorm.Session{NewDB: true}).Exec(fmt.Sprintf(how[1], id)).Error)
				awaitGone(t, db, id)
				if err := take(tx, 42); !hide {
					return err
				}
				return nil
			}}
			together(t, db, l, before, broken, after)
			if before.err == nil || broken.err == nil || errors.Is(errors.Join(before.err, broken.err), gormlock.ErrCommitUnknown) {
				t.Errorf("before %v, broken %v", before.err, broken.err)
			}
			ok(t, "after, in another group", after.err)
		}
		wantLeft(t, db, 42, 8)
	})
}

// TestGrouped_RowsOfAnotherGoroutine: on SQLite a goroutine of the function may read rows while it goes on; for -race.
func TestGrouped_RowsOfAnotherGoroutine(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() != "sqlite" {
			return
		}
		for sku := range 100 {
			put(t, db, sku, 50)
		}
		reading := &caller{fn: func(tx *gorm.DB) error {
			rows, err := tx.Model(&Stock{}).Rows()
			ok(t, "Rows", err)
			n := make(chan int)
			go func() {
				i := 0
				for rows.Next() {
					i++
				}
				n <- i
			}()
			for range 20 {
				err = errors.Join(err, take(tx, 42))
			}
			if read := <-n; read != 100 {
				t.Errorf("%d rows", read)
			}
			return errors.Join(err, rows.Close())
		}}
		together(t, db, l, reading)
		ok(t, "reading", reading.err)
		wantLeft(t, db, 42, 30)
	})
}
