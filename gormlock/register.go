package gormlock

import (
	"errors"
	"fmt"
	"reflect"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/gormkeys"
)

// New returns the plugin that makes guards work on a database. Register it once, when the database
// is opened, before sessions are made of it and before dbresolver:
//
//	err := db.Use(gormlock.New(locker))
//
// A nil Locker means core.Default() at the time a guard is used. db.Use returns an error that
// matches [ErrUnmanagedTransaction] if the database was opened on a transaction, and [ErrDialect] if
// it is not MySQL, MariaDB, PostgreSQL or SQLite. It also returns an error if dbresolver came first, or if a model of [Protect] cannot be read. The same holds if a
// callback of GORM that guards rely on was removed, or if another gorm.Open got the same
// gorm.Config.
func New(l *core.Locker, opts ...Option) gorm.Plugin {
	p := &plugin{locker: l}
	for _, o := range opts {
		if o != nil {
			o.applyPlugin(p)
		}
	}
	return p
}

// Name implements gorm.Plugin.
func (p *plugin) Name() string { return pluginName }

// Initialize implements gorm.Plugin.
func (p *plugin) Initialize(db *gorm.DB) error {
	// A source or replica that dbresolver opens has dbresolver among its plugins, but no callback
	// of it.
	if db.Callback().Query().Get(gormkeys.Resolver) != nil {
		return errors.New("gormlock: dbresolver is registered already and would go around the guards: " +
			"register gormlock before it")
	}
	if err := unsharded(db); err != nil {
		return err
	}
	// The gorm.DB of a failed gorm.Open has no callbacks, and no Statement either.
	if err := checkCallbacks(db); err != nil {
		return err
	}
	// After a later gorm.Open with the same gorm.Config, db.ConnPool is that of the other database.
	own, shared := db.Statement.ConnPool, db.ConnPool
	if reflect.TypeOf(own) != reflect.TypeOf(shared) || reflect.ValueOf(own).Comparable() && own != shared {
		return errors.New("gormlock: the gorm.DB has other connections than its gorm.Config: " +
			"use what gorm.Open returned, and give each gorm.Open a gorm.Config of its own")
	}
	if p.defaults.err != nil {
		return fmt.Errorf("gormlock: New: %w", p.defaults.err)
	}
	tables, err := tablesOf(db, p.protect)
	if err != nil {
		return err
	}
	prepared, _ := db.ConnPool.(*gorm.PreparedStmtDB)
	inner := db.ConnPool
	if prepared != nil {
		inner = prepared.ConnPool
	}
	wrapped, err := p.WrapPool(db, inner)
	if err != nil {
		return err // and the database is as it was
	}
	if prepared != nil {
		prepared.ConnPool = wrapped
	} else {
		db.ConnPool, db.Statement.ConnPool = wrapped, wrapped
	}
	return p.registerCallbacks(db, tables)
}
