package gormlock

import (
	"database/sql"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqltable"
)

// writerOf returns the connections that writes to a table go to. With dbresolver these are not
// always db's own.
func writerOf(db *gorm.DB, table string) (*sql.DB, error) {
	if _, ok := db.Plugins[gormkeys.Resolver]; !ok {
		return db.DB()
	}
	dry := unguarded(db).Session(&gorm.Session{DryRun: true}).Table(table).Exec("DELETE FROM " + table)
	if dry.Error != nil {
		return nil, dry.Error
	}
	return dry.DB()
}

// writerConn is writerOf, except that without dbresolver it may be a single connection: that of
// Connection, whose search_path or database may be another.
func writerConn(db *gorm.DB, table string) (sqltable.Conn, error) {
	if _, ok := db.Plugins[gormkeys.Resolver]; ok {
		return writerOf(db, table)
	}
	if prepared, ok := db.Statement.ConnPool.(*gorm.PreparedStmtDB); ok {
		return prepared.ConnPool, nil
	}
	return db.Statement.ConnPool, nil
}

// unguarded returns a session of db that keeps only its context, without guards. With dbresolver it
// also reads at the writer.
func unguarded(db *gorm.DB) *gorm.DB {
	db = db.Session(&gorm.Session{NewDB: true, Context: withoutGuards(db.Statement.Context)})
	return db.Set(gormkeys.WriteSetting, struct{}{}).Session(&gorm.Session{})
}
