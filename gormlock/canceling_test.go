package gormlock_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync"
	"sync/atomic"

	gosqlite "github.com/glebarez/go-sqlite"
	"gorm.io/gorm"
)

// cancels are the contexts that the SQL function cancel_context ends, by number.
var (
	cancels    sync.Map // of context.CancelFunc
	lastCancel atomic.Int64
)

// SQLite calls cancel_context(number, value), which returns the value.
func init() {
	gosqlite.MustRegisterScalarFunction("cancel_context", 2, func(_ *gosqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		cancel, found := cancels.LoadAndDelete(args[0])
		if !found {
			return nil, fmt.Errorf("no context %v", args[0])
		}
		cancel.(context.CancelFunc)()
		return args[1], nil
	})
}

// execCanceled runs a statement on SQLite whose context ends while it runs. The statement reads the
// numbers n(x). The context ends when 1000 of them are read, because SQLite is not interrupted if a
// context ends before the statement begins. A statement that is not interrupted runs on for minutes.
func execCanceled(tx *gorm.DB, before, after string) error {
	ctx, cancel := context.WithCancel(tx.Statement.Context)
	defer cancel()
	number := lastCancel.Add(1)
	cancels.Store(number, cancel)
	numbers := fmt.Sprintf("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL "+
		"SELECT CASE x WHEN 1000 THEN cancel_context(%d, x + 1) ELSE x + 1 END FROM n WHERE x < 1e9) ", number)
	err := tx.WithContext(ctx).Exec(before + numbers + after).Error
	if ctx.Err() == nil {
		panic(fmt.Sprintf("the statement did not run: %v", err))
	}
	return err
}
