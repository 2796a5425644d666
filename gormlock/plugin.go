package gormlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
)

const (
	pluginName   = "gormlock"
	resolverName = "gorm:db_resolver"
	shardingName = "gorm:sharding" // the callback of gorm.io/sharding, in each operation
)

type plugin struct {
	locker  *core.Locker
	protect []any

	defaults guard // of all guards

	made atomic.Pointer[instruments]
}

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
	if db.Callback().Query().Get(resolverName) != nil {
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

// WrapPool returns the pool that begins transactions under guards. Package stock calls it, too.
func (p *plugin) WrapPool(db *gorm.DB, inner gorm.ConnPool) (gorm.ConnPool, error) {
	switch inner := inner.(type) {
	case *pool:
		return inner, nil
	case *gorm.PreparedStmtDB: // of a session; the statements stay shared
		wrapped, err := p.WrapPool(db, inner.ConnPool)
		if wrapped == inner.ConnPool {
			return inner, err
		}
		session := *inner // with the fields of later versions
		session.ConnPool = wrapped
		return &session, err
	case gorm.TxCommitter:
		return nil, fmt.Errorf("gormlock: %w", ErrUnmanagedTransaction)
	case gorm.TxBeginner, gorm.ConnPoolBeginner:
		d, err := dialectOf(db)
		if err != nil {
			return nil, err
		}
		return &pool{ConnPool: inner, plugin: p, log: db.Logger, dialect: d}, nil
	}
	return nil, fmt.Errorf("gormlock: a connection pool of type %T cannot begin transactions: %w", inner, gorm.ErrInvalidTransaction)
}

// poolOf returns the pool in what WrapPool returned.
func poolOf(c gorm.ConnPool) *pool {
	if prepared, ok := c.(*gorm.PreparedStmtDB); ok {
		return poolOf(prepared.ConnPool)
	}
	p, _ := c.(*pool)
	return p
}

// registered returns the plugin of a database.
func registered(db *gorm.DB) (*plugin, error) {
	if p, ok := db.Plugins[pluginName].(*plugin); ok {
		return p, nil
	}
	return nil, ErrNotRegistered
}

var errNoLocker = errors.New("there is no Locker: call core.SetDefault when the process starts, or pass one to gormlock.New")

func (p *plugin) lockerInUse() (*core.Locker, error) {
	if p.locker != nil {
		return p.locker, nil
	}
	if l := core.Default(); l != nil {
		return l, nil
	}
	return nil, errNoLocker
}

// carries reports whether a context carries a lock on one of the keys: who has it does not wait for
// it in a group.
func (p *plugin) carries(ctx context.Context, keys []string) bool {
	l, err := p.lockerInUse()
	return err == nil && slices.ContainsFunc(keys, func(key string) bool { return l.Carries(ctx, key) })
}
