package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// basket has associations of two tables, so that its Create is several statements.
type basket struct {
	ID    uint
	Lines []basketLine
	Notes []basketNote
}

type basketLine struct {
	ID       uint
	BasketID uint
	Name     string `gorm:"size:64"`
}

type basketNote struct {
	ID       uint
	BasketID uint
	Name     string `gorm:"size:64"`
}

// endsOnInsert makes an insert into a table end the whole transaction.
func endsOnInsert(t *testing.T, db *gorm.DB, table string) {
	t.Helper()
	create := map[string][]string{
		"sqlite": {"CREATE TRIGGER ends BEFORE INSERT ON " + table + " BEGIN SELECT RAISE(ROLLBACK, 'ended'); END"},
		"mysql": {"CREATE TRIGGER ends BEFORE INSERT ON " + table + " FOR EACH ROW SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, " +
			"MESSAGE_TEXT = 'ended'"},
		"postgres": {"CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS " +
			"$$ BEGIN RAISE EXCEPTION 'ended' USING ERRCODE = '40P01'; END $$",
			"CREATE TRIGGER ends BEFORE INSERT ON " + table + " FOR EACH ROW EXECUTE FUNCTION ends()"},
	}
	for _, statement := range create[db.Name()] {
		ok(t, "CREATE", unprepared(db).Exec(statement).Error)
	}
}

// TestPrepared_Ended: a prepared statement with which the database ends the transaction is judged when
// its answer arrives. No statement follows it, also not in the callbacks of the same statement.
// The trigger on MySQL ends nothing by itself, so the test asks whether a statement was sent.
func TestPrepared_Ended(t *testing.T) {
	t.Parallel()
	const inPool = "pool"
	forms := map[string]func(tx *gorm.DB) error{
		"first association": func(tx *gorm.DB) error {
			return tx.Create(&basket{Lines: []basketLine{{Name: "a"}}, Notes: []basketNote{{Name: "b"}}}).Error
		},
		"callback": func(tx *gorm.DB) error { return tx.Create(&basketLine{Name: "a"}).Error },
		"hook":     func(tx *gorm.DB) error { return tx.Create(&careless{Name: "a"}).Error },
		inPool: func(tx *gorm.DB) error {
			const query = "INSERT INTO basket_lines (name) VALUES ('a')"
			_, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, query)
			_, next := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, "INSERT INTO basket_notes (name) VALUES ('b')")
			if next == nil {
				return nil
			}
			return err
		},
	}
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &basket{}, &basketLine{}, &basketNote{}))
		endsOnInsert(t, db, "basket_lines")
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		// An audit plugin writes a row after each create, whatever its error.
		sent := 0
		ok(t, "Register", db.Callback().Create().After("gorm:create").Register("audit", func(tx *gorm.DB) {
			if tx.Error == nil || tx.DryRun {
				return
			}
			audit := tx.Session(&gorm.Session{NewDB: true, SkipHooks: true})
			audit.Error = nil
			if audit.Exec("INSERT INTO basket_notes (name) VALUES ('audit')").Error == nil {
				sent++
			}
		}))
		for _, prepared := range []bool{false, true} {
			db := db.Session(&gorm.Session{PrepareStmt: prepared})
			for name, form := range forms {
				sent = 0
				err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					ok(t, name, tx.Exec("INSERT INTO basket_notes (name) VALUES ('before')").Error)
					if form(tx) == nil {
						t.Errorf("%s: no error", name)
					}
					return nil
				})
				if err == nil || errors.Is(err, gormlock.ErrCommitUnknown) {
					t.Errorf("%s: prepared %v: %v", name, prepared, err)
				}
				if name != inPool || !prepared { // otherwise it is GORM's own
					err = db.Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error {
						ok(t, name, tx.Exec("INSERT INTO basket_notes (name) VALUES ('before')").Error)
						if form(tx) == nil {
							t.Errorf("%s: no error", name)
						}
						return nil
					})
					if err == nil {
						t.Errorf("%s: prepared %v: no error of the block", name, prepared)
					}
				}
				if sent != 0 {
					t.Errorf("%s: prepared %v: %d statements were sent after the end", name, prepared, sent)
				}
				var n int64
				ok(t, "Count", db.Model(&basketNote{}).Count(&n).Error)
				if n != 0 {
					t.Fatalf("%s: prepared %v: %d rows were written", name, prepared, n)
				}
				wantIdle(t, db, l, "k")
			}
		}
	})
}

// TestPrepared_PoolOfABlock: in GORM's own block with PrepareStmt, the plugin sees no answers on
// tx.Statement.ConnPool, as docs/gorm.md says. If it does one day, the sentence there can go.
func TestPrepared_PoolOfABlock(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "sqlite" {
			return
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&basketLine{}, &basketNote{}))
		endsOnInsert(t, db, "basket_lines")
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		db = db.Session(&gorm.Session{PrepareStmt: true}).Scopes(gormlock.Guard("k"))
		_ = db.Transaction(func(tx *gorm.DB) error {
			ok(t, "Exec", tx.Exec("INSERT INTO basket_notes (name) VALUES ('before')").Error)
			send := func(query string) error {
				_, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, query)
				return err
			}
			if send("INSERT INTO basket_lines (name) VALUES ('a')") == nil {
				t.Error("the trigger did not end the transaction")
			}
			ok(t, "what follows", send("INSERT INTO basket_notes (name) VALUES ('after it')"))
			return errUndone
		})
	})
}

// careless writes in a hook, and drops the errors.
type careless struct {
	ID   uint
	Name string
}

func (careless) TableName() string { return "basket_lines" }

func (c *careless) BeforeCreate(tx *gorm.DB) error {
	tx = tx.Session(&gorm.Session{NewDB: true})
	_ = tx.Exec("INSERT INTO basket_lines (name) VALUES ('hook')").Error
	return tx.Exec("INSERT INTO basket_notes (name) VALUES ('after it')").Error
}

// questionTx counts how often SQLite is asked whether a transaction is open.
type questionTx struct {
	*sql.Tx
	asked *int
}

func (q *questionTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if query == "BEGIN" {
		*q.asked++
	}
	return q.Tx.ExecContext(ctx, query, args...)
}

// TestJudge_AsksOnce: SQLite is asked once for each answer that is an error, and never for other
// errors.
func TestJudge_AsksOnce(t *testing.T) {
	t.Parallel()
	statements := map[string]struct {
		run  func(tx *gorm.DB) error
		asks int
	}{
		"duplicate": {func(tx *gorm.DB) error { return tx.Create(&Stock{SKU: 42}).Error }, 1},
		"no table":  {func(tx *gorm.DB) error { return tx.Exec("DELETE FROM nowhere").Error }, 1},
		"a read":    {func(tx *gorm.DB) error { return tx.Raw("SELECT x FROM nowhere").Scan(new(int)).Error }, 1},
		"a Row":     {func(tx *gorm.DB) error { return tx.Raw("SELECT x FROM nowhere").Row().Scan(new(int)) }, 1},
		"not found": {func(tx *gorm.DB) error { return tx.Take(&Stock{}, "sku = 1").Error }, 0},
		"no row":    {func(tx *gorm.DB) error { return tx.Raw("SELECT 1 WHERE 1 = 0").Row().Scan(new(int)) }, 0},
		"a scan":    {func(tx *gorm.DB) error { return tx.Raw("SELECT 'a'").Scan(new(int)).Error }, 0},
		"a hook":    {func(tx *gorm.DB) error { return tx.Create(&Acting{SKU: 2, Name: "fail in BeforeCreate"}).Error }, 0},
		"no WHERE":  {func(tx *gorm.DB) error { return tx.Model(&Stock{}).Update("name", "x").Error }, 0},
		"rows closed early": {func(tx *gorm.DB) error {
			rows, err := tx.Raw("SELECT 1 UNION SELECT 2").Rows()
			ok(t, "Rows", err)
			rows.Next()
			ok(t, "Close", rows.Close())
			return errUndone
		}, 0},
	}
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "sqlite" {
			return
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		put(t, db, 42, 10)
		asked := 0
		wrapTx(t, db, func(tx *sql.Tx) gorm.ConnPool { return &questionTx{tx, &asked} })
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		for _, prepared := range []bool{false, true} {
			db := db.Session(&gorm.Session{PrepareStmt: prepared})
			for name, statement := range statements {
				asked = 0
				ok(t, name, gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					ok(t, name, take(tx, 42))
					if statement.run(tx) == nil {
						t.Errorf("%s: no error", name)
					}
					return take(tx, 42)
				}))
				if asked != statement.asks {
					t.Errorf("%s: prepared %v: SQLite was asked %d times, want %d", name, prepared, asked, statement.asks)
				}
			}
		}
	})
}
