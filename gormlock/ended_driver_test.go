package gormlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// otherError is the error of another driver for MySQL: that of go-mysql-org/go-mysql is like it.
type otherError struct {
	Code    uint16
	Message string
	State   string
}

func (e *otherError) Error() string {
	return fmt.Sprintf("ERROR %d (%s): %s", e.Code, e.State, e.Message)
}

func asOtherError(err error) error {
	if e, ok := errors.AsType[*gomysql.MySQLError](err); ok {
		return &otherError{e.Number, e.Message, string(e.SQLState[:])}
	}
	return err
}

// asVitess returns the error of a proxy for a transaction that its server has ended.
func asVitess(err error) error {
	if e, ok := errors.AsType[*gomysql.MySQLError](err); ok && e.Number == 1213 {
		return &gomysql.MySQLError{Number: 1105, SQLState: [5]byte{'H', 'Y', '0', '0', '0'},
			Message: "vttablet: rpc error: code = Aborted desc = transaction 7: ended (unlocked closed connection)"}
	}
	return err
}

// rewordConnector is a driver for MySQL that words the errors of statements in its own way.
type rewordConnector struct {
	driver.Connector
	reword func(error) error
}

func (c rewordConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &rewordConn{conn, c.reword}, nil
}

type rewordConn struct {
	driver.Conn
	reword func(error) error
}

func (c *rewordConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r, err := c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
	return r, c.reword(err)
}

func (c *rewordConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	r, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
	return r, c.reword(err)
}

func (c *rewordConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

func (c *rewordConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, query)
}

func (c *rewordConn) CheckNamedValue(v *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

// reworded opens the database of plain with a driver that words errors in its own way.
func reworded(t *testing.T, plain *gorm.DB, reword func(error) error) *gorm.DB {
	t.Helper()
	db := openMySQL(t, plain, func(c driver.Connector) driver.Connector { return rewordConnector{c, reword} })
	ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
	return db
}

// openMySQL opens the database of plain with another driver around that of MySQL.
func openMySQL(t *testing.T, plain *gorm.DB, around func(driver.Connector) driver.Connector, opts ...gorm.Option) *gorm.DB {
	t.Helper()
	cfg, err := gomysql.ParseDSN(os.Getenv("ONELANE_MYSQL_DSN"))
	ok(t, "ParseDSN", err)
	cfg.DBName, cfg.ParseTime, cfg.InterpolateParams = plain.Migrator().CurrentDatabase(), true, true
	connector, err := gomysql.NewConnector(cfg)
	ok(t, "NewConnector", err)
	conns := sql.OpenDB(around(connector))
	t.Cleanup(func() { _ = conns.Close() })
	opts = append([]gorm.Option{&gorm.Config{Logger: logger.Discard}}, opts...)
	db, err := gorm.Open(mysql.New(mysql.Config{Conn: conns}), opts...)
	ok(t, "Open", err)
	return db
}

// TestEnded_DeadlockInOtherWords: nothing is written after a deadlock, however it is reported.
func TestEnded_DeadlockInOtherWords(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, plain *gorm.DB) {
		if plain.Name() != "mysql" {
			return
		}
		for name, reword := range map[string]func(error) error{
			"known driver": func(err error) error { return err }, "other driver": asOtherError, "proxy": asVitess, "wrapper": asStateError,
		} {
			t.Run(name, func(t *testing.T) {
				db := reworded(t, plain, reword)
				ok(t, "Delete", plain.Exec("DELETE FROM items").Error)
				ok(t, "Delete", plain.Exec("DELETE FROM stocks").Error)
				put(t, plain, 42, 10)
				put(t, plain, 43, 10)
				other := plain.Begin()
				ok(t, "other", take(other, 43))
				var second Stock
				ok(t, "Take", other.Take(&second, "sku = 43").Error)
				for range 50 { // heavier, so that it is not the victim
					ok(t, "other", other.Create(&Item{StockID: second.ID, Name: "heavy"}).Error)
				}
				done := make(chan error, 1)
				want(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					ok(t, "take", take(tx, 42))
					go func() { done <- errors.Join(take(other, 42), other.Rollback().Error) }()
					awaitLockWait(t, plain)
					if tx.Clauses(clause.Locking{Strength: "UPDATE"}).Take(&Stock{}, second.ID).Error == nil {
						t.Error("no deadlock")
					}
					if tx.Create(&Item{StockID: second.ID, Name: "order"}).Error == nil {
						t.Error("a statement was sent after the deadlock")
					}
					return errUndone
				}), errUndone)
				ok(t, "other", <-done)
				var n int64
				if ok(t, "Count", plain.Model(&Item{}).Count(&n).Error); n != 0 {
					t.Errorf("the transaction was rolled back, and %d rows of it are committed", n)
				}
			})
		}
	})
}

// ownError is the error of an application.
type ownError struct{ reason string }

func (r *ownError) Error() string { return r.reason }

// TestEnded_OtherErrorsGoOn: errors of an application or of a scan, and those of the server that
// may mean anything, leave the transaction open. So the later statements are sent.
func TestEnded_OtherErrorsGoOn(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if db.Name() != "mysql" {
			return
		}
		put(t, db, 42, 100)
		fails := map[string]func(tx *gorm.DB) error{
			"a hook": func(tx *gorm.DB) error {
				refuse := func(db *gorm.DB) { _ = db.AddError(&ownError{"no"}) }
				ok(t, "Register", tx.Callback().Update().Before("gorm:update").Register("refuse", refuse))
				defer func() { ok(t, "Remove", tx.Callback().Update().Remove("refuse")) }()
				return take(tx, 42)
			},
			"a hook, rows are open": func(tx *gorm.DB) error {
				rows, err := tx.Raw("SELECT id FROM stocks").Rows()
				ok(t, "Rows", err)
				defer rows.Close()
				return tx.Model(&Stock{}).Update("left", 1).Error // gorm.ErrMissingWhereClause
			},
			"a scan":    func(tx *gorm.DB) error { return tx.Raw("SELECT 'a'").Scan(new(int)).Error },
			"no table":  func(tx *gorm.DB) error { return tx.Exec("DELETE FROM nowhere").Error },
			"no syntax": func(tx *gorm.DB) error { return unprepared(tx).Exec("DELETE").Error },
			"a SIGNAL":  func(tx *gorm.DB) error { return unprepared(tx).Exec("SIGNAL SQLSTATE '45000'").Error },
			"a proxy's": func(tx *gorm.DB) error {
				return unprepared(tx).Exec("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1105").Error
			},
			"not found":  func(tx *gorm.DB) error { return tx.Take(&Stock{}, "sku = 1").Error },
			"a Row":      func(tx *gorm.DB) error { return tx.Raw("SELECT 1 FROM stocks WHERE sku = 1").Row().Scan(new(int)) },
			"a late one": func(tx *gorm.DB) error { return tx.Scopes(gormlock.Guard("late")).Exec("DELETE FROM stocks").Error },
		}
		expected := int64(100)
		other := reworded(t, db, asOtherError)
		for name, fail := range fails {
			for _, db := range []*gorm.DB{db, other} {
				ok(t, name, gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					ok(t, name, take(tx, 42))
					if fail(tx) == nil {
						t.Errorf("%s: no error", name)
					}
					return take(tx, 42)
				}))
			}
			expected -= 4
			wantLeft(t, db, 42, expected)
		}
	})
}

// stateError is what a wrapper makes of the errors of all its databases: it has the SQLSTATE only.
type stateError string

func (e stateError) Error() string    { return "database error " + string(e) }
func (e stateError) SQLState() string { return string(e) }

func asStateError(err error) error {
	if e, ok := errors.AsType[*gomysql.MySQLError](err); ok && e.Number != 1568 { // "SET TRANSACTION" is answered as usual
		return stateError(e.SQLState[:])
	}
	return err
}
