package gormlock

import (
	"errors"
	"fmt"

	"gorm.io/gorm"
)

// This file has what GORM and its plugins name and do not promise. TestGORMNames shows what breaks.
const (
	beginStep  = "gorm:begin_transaction"
	commitStep = "gorm:commit_or_rollback_transaction"

	// startedSetting marks a statement whose transaction GORM began.
	startedSetting = "gorm:started_transaction"

	resolverName = "gorm:db_resolver"      // plugin and callback of gorm.io/plugin/dbresolver
	writeSetting = resolverName + ":write" // what its clause Write leaves in a statement
	shardingName = "gorm:sharding"         // callback of gorm.io/sharding, in each operation
)

// startedByGORM reports whether GORM began the transaction of this statement.
func startedByGORM(db *gorm.DB) bool {
	_, started := db.InstanceGet(startedSetting)
	return started
}

// forgetStarted deletes what GORM leaves in a statement that is used again. GORM would commit once
// more.
func forgetStarted(s *gorm.Statement) { s.Settings.Delete(fmt.Sprintf("%p", s) + startedSetting) }

// unsharded refuses gorm.io/sharding. It puts a connection pool of its own around each statement,
// and there adds the suffix to the table. In the transaction of a single write that pool is
// missing.
func unsharded(db *gorm.DB) error {
	if db.Callback().Query().Get(shardingName) == nil {
		return nil
	}
	return errors.New(`gormlock: gorm.io/sharding does not work with guards: remove it, ` +
		`and name the table yourself, as in db.Table("orders_07")`)
}
