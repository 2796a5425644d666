package gormkeys

import (
	"fmt"
	"reflect"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
)

// These names of GORM and its plugins are not promised. names_test.go shows what breaks.
const (
	BeginStep  = "gorm:begin_transaction"
	CommitStep = "gorm:commit_or_rollback_transaction"

	// SaveSetting is what Save leaves in the settings of a statement that creates a slice.
	SaveSetting = "gorm:update_track_time"

	startedSetting = "gorm:started_transaction"

	// Resolver names gorm.io/plugin/dbresolver: the plugin, and its callbacks.
	Resolver = "gorm:db_resolver"
	// WriteSetting is what dbresolver's clause Write leaves in the settings of a statement.
	WriteSetting = Resolver + ":write"
	// Sharding names the callbacks of gorm.io/sharding, in each operation.
	Sharding = "gorm:sharding"
)

// StartedByGORM reports whether GORM began the transaction of this statement.
func StartedByGORM(db *gorm.DB) bool {
	_, started := db.InstanceGet(startedSetting)
	return started
}

// MarkStarted makes GORM end the transaction of this statement, as if GORM had begun it.
func MarkStarted(db *gorm.DB) { db.InstanceSet(startedSetting, true) }

// IsBegin reports whether fn is GORM's own callback of BeginStep.
func IsBegin(fn func(*gorm.DB)) bool {
	return reflect.ValueOf(fn).Pointer() == reflect.ValueOf(callbacks.BeginTransaction).Pointer()
}

// ForgetStarted deletes what GORM leaves in a statement that is used again. GORM would commit once
// more.
func ForgetStarted(s *gorm.Statement) { s.Settings.Delete(fmt.Sprintf("%p", s) + startedSetting) }

// Unprepared returns a session that prepares no statement: MySQL cannot prepare a SAVEPOINT.
func Unprepared(tx *gorm.DB) *gorm.DB {
	tx = tx.Session(&gorm.Session{NewDB: true, Context: tx.Statement.Context})
	tx.Statement.ConnPool = InnerTx(tx.Statement.ConnPool)
	return tx
}

// InnerTx returns the transaction that the statements of a session with PrepareStmt run in, or its
// argument.
func InnerTx(c gorm.ConnPool) gorm.ConnPool {
	for prepared, ok := c.(*gorm.PreparedStmtTX); ok; prepared, ok = c.(*gorm.PreparedStmtTX) {
		c = prepared.Tx
	}
	if prepared, ok := c.(Prepared); ok {
		return prepared.Unprepared()
	}
	return c
}
