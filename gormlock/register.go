package gormlock

import (
	"errors"
	"fmt"
	"reflect"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/gormkeys"
)

// New returns the plugin that makes guards work on a database. Register it once, when the database
// is opened, before sessions are made of it and before dbresolver:
//
//	err := db.Use(gormlock.New(locker))
//
// A nil Locker means core.Default() at the time a guard is used. db.Use returns an error if nothing
// could be guarded. It matches [ErrUnmanagedTransaction] if the database was opened on a transaction,
// and [ErrDialect] if it is not MySQL, MariaDB, PostgreSQL or SQLite.
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

const (
	beforeName = "gormlock:before"
	afterName  = "gormlock:after"
)

// The steps are the callbacks of GORM that run code of users: hooks, and serializers of fields.
var operations = []*operation{
	{name: "create", writes: true, steps: []string{"gorm:before_create",
		"gorm:save_before_associations", "gorm:create", "gorm:save_after_associations", "gorm:after_create"}},
	{name: "update", writes: true, steps: []string{"gorm:setup_reflect_value", "gorm:before_update",
		"gorm:save_before_associations", "gorm:update", "gorm:save_after_associations", "gorm:after_update"}},
	{name: "delete", writes: true, steps: []string{"gorm:before_delete",
		"gorm:delete_before_associations", "gorm:delete", "gorm:after_delete"}},
	{name: "query", reads: true},
	{name: "row", reads: true},
	{name: "raw"},
}

// wraps returns what replaces each callback of GORM that the plugin relies on. A database without
// default transactions has neither of the steps that begin and end them.
func (op *operation) wraps(db *gorm.DB) map[string]func(fn func(*gorm.DB)) func(*gorm.DB) {
	all := make(map[string]func(func(*gorm.DB)) func(*gorm.DB))
	for _, name := range op.steps {
		all[name] = func(fn func(*gorm.DB)) func(*gorm.DB) { return rollbackOnPanic(wrappedByField(name, fn)) }
	}
	if op.name == "raw" {
		all["gorm:raw"] = rollbackOnPanic
	}
	if op.writes && !db.SkipDefaultTransaction {
		all[gormkeys.BeginStep] = thenBegun
		all[gormkeys.CommitStep] = singleEnded
	}
	return all
}

// processor is one of GORM's, whose type is not exported.
type processor struct {
	steps interface {
		Get(name string) func(*gorm.DB)
		Replace(name string, fn func(*gorm.DB)) error
	}
	first, last interface {
		Register(name string, fn func(*gorm.DB)) error
	}
}

// processorOf returns the processor of operations[i].
func processorOf(db *gorm.DB, i int) processor {
	all := db.Callback()
	p := at(i, all.Create(), all.Update(), all.Delete(), all.Query(), all.Row(), all.Raw())
	return processor{steps: p, first: p.Before("*"), last: p.After("*")}
}

func at[T any](i int, all ...T) T { return all[i] }

// checkCallbacks reports the first callback of GORM that the plugin relies on and that is missing.
func checkCallbacks(db *gorm.DB) error {
	for i, op := range operations {
		steps := processorOf(db, i).steps
		for name := range op.wraps(db) {
			if steps.Get(name) == nil {
				return fmt.Errorf("gormlock: GORM's callback %q of %s is missing, and guards rely on it: "+
					"remove it after db.Use, or use GORM v1.31", name, op.name)
			}
		}
	}
	return nil
}

// registerCallbacks wraps GORM's callbacks, and registers one before and one after all others.
func (p *plugin) registerCallbacks(db *gorm.DB, protected map[string]bool) error {
	loud := db.Logger
	db.Logger = logger.Discard // GORM logs every Replace
	defer func() { db.Logger = loud }()
	for i, op := range operations {
		if err := p.register(db, op, processorOf(db, i), protected); err != nil {
			return fmt.Errorf("gormlock: registering callbacks: %w", err)
		}
	}
	return nil
}

func (p *plugin) register(db *gorm.DB, op *operation, processor processor, protected map[string]bool) error {
	for name, wrap := range op.wraps(db) {
		if err := processor.steps.Replace(name, wrap(processor.steps.Get(name))); err != nil {
			return err
		}
	}
	after := afterWrite
	if op.reads {
		after = explainError
	}
	err := processor.first.Register(beforeName, func(db *gorm.DB) { p.before(db, op, protected) })
	if err != nil {
		return err
	}
	return processor.last.Register(afterName, after)
}
