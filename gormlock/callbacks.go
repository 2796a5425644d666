package gormlock

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/logger"
)

// operation is one of GORM's processors.
type operation struct {
	name    string
	reads   bool
	writes  bool // builds its SQL from a model
	handled []string
}

// The callbacks of GORM that run code of users: hooks, and serializers of fields.
var operations = []operation{
	{name: "create", writes: true, handled: []string{"gorm:before_create", "gorm:save_before_associations", "gorm:create", "gorm:save_after_associations", "gorm:after_create"}},
	{name: "update", writes: true, handled: []string{"gorm:setup_reflect_value", "gorm:before_update", "gorm:save_before_associations", "gorm:update", "gorm:save_after_associations", "gorm:after_update"}},
	{name: "delete", writes: true, handled: []string{"gorm:before_delete", "gorm:delete_before_associations", "gorm:delete", "gorm:after_delete"}},
	{name: "query", reads: true},
	{name: "row", reads: true},
	{name: "raw", handled: []string{"gorm:raw"}},
}

const (
	beforeName = "gormlock:before"
	afterName  = "gormlock:after"
)

// registerCallbacks puts ours around all others, and around GORM's what gives a guard up when one panics.
func (p *plugin) registerCallbacks(db *gorm.DB, protected map[string]bool) error {
	loud := db.Logger
	db.Logger = logger.Discard // GORM logs every Replace
	defer func() { db.Logger = loud }()
	for _, op := range operations {
		before := func(db *gorm.DB) { p.before(db, op, protected) }
		after := p.after
		if op.reads {
			after = p.afterRead
		}
		if err := register(db, op, before, after); err != nil {
			return fmt.Errorf("gormlock: registering callbacks: %w", err)
		}
	}
	return nil
}

func register(db *gorm.DB, op operation, before, after func(*gorm.DB)) error {
	all := db.Callback()
	processor := all.Raw()
	switch op.name {
	case "create":
		processor = all.Create()
	case "update":
		processor = all.Update()
	case "delete":
		processor = all.Delete()
	case "query":
		processor = all.Query()
	case "row":
		processor = all.Row()
	}
	for _, name := range op.handled {
		if fn := processor.Get(name); fn != nil {
			if err := processor.Replace(name, giveUpOnPanic(withVersion(name, fn))); err != nil {
				return err
			}
		}
	}
	if fn := processor.Get("gorm:begin_transaction"); fn != nil {
		if err := processor.Replace("gorm:begin_transaction", thenBegun(fn)); err != nil {
			return err
		}
	}
	if err := processor.Before("*").Register(beforeName, before); err != nil {
		return err
	}
	return processor.After("*").Register(afterName, after)
}

// before runs before every statement.
func (p *plugin) before(db *gorm.DB, op operation, protected map[string]bool) {
	if db.Error != nil {
		return
	}
	retrack(db)
	var err error
	set := !unset(db.Statement)
	if set || len(demandOf(db.Statement.Context).keys) > 0 {
		err = p.enter(db, op)
	}
	t, _ := transactionOf(db.Statement.ConnPool)
	if err == nil && op.writes && len(protected) > 0 && !db.DryRun && !t.guarded() {
		if s := db.Statement; slices.ContainsFunc(tablesIn(s), func(table string) bool { return protected[table] }) {
			err = fmt.Errorf("gormlock: table %q: %w", s.Table, ErrUnguarded)
		}
	}
	if op.name == "raw" && !db.DryRun {
		t.savepoint(db, err)
	}
	if err == nil && set && sellOutOf(db.Statement) != nil {
		err = t.sealable()
	}
	if err == nil {
		err = begun(db)
	}
	if err == nil && set && op.reads {
		err = lockRows(db)
	}
	if op.name != "row" {
		_ = db.AddError(err)
		return
	}
	if rows, _ := db.Get("rows"); err != nil && rows != true {
		db.Statement.Dest = failedRow(err) // what Row returns
	}
	_ = db.AddError(err)
}

// unset says whether a statement has no settings at all, so that none are this package's. It must not make a map of the zero
// sync.Map, which reading it would.
func unset(s *gorm.Statement) bool {
	settings := reflect.ValueOf(&s.Settings).Elem()
	if everSet != nil {
		return settings.Field(everSet[0]).Field(everSet[1]).IsZero()
	}
	return settings.IsZero()
}

// everSet is the field of a sync.Map that is zero until it is used first, which is several times as fast to look at as all of
// them; nil where there is none that is known.
var everSet = func() []int {
	var empty, set sync.Map
	set.Store(0, 0)
	inner, ok1 := reflect.TypeFor[sync.Map]().FieldByName("m")
	if !ok1 || inner.Type.Kind() != reflect.Struct {
		return nil
	}
	inited, ok2 := inner.Type.FieldByName("inited")
	index := append(inner.Index, inited.Index...)
	zero := func(m *sync.Map) bool { return reflect.ValueOf(m).Elem().FieldByIndex(index).IsZero() }
	if !ok2 || len(index) != 2 || !zero(&empty) || zero(&set) {
		return nil
	}
	return index
}()

// begun begins the transaction of a statement that is about to be sent, if it has not begun. PrepareContext would, but
// GORM prepares each statement once for all who want it: those who have the connection, or the fence, that BEGIN waits
// for would wait for it, and its error would be theirs. And GORM makes an empty sql.Row of an error in preparing one.
func begun(db *gorm.DB) error {
	t, _ := transactionOf(db.Statement.ConnPool)
	if t == nil || db.DryRun {
		return nil
	}
	_, err := t.conn(db.Statement.Context)
	return err
}

// thenBegun is for GORM's own transaction around a single statement, which fn begins.
func thenBegun(fn func(*gorm.DB)) func(*gorm.DB) {
	gorms := reflect.ValueOf(fn).Pointer() == reflect.ValueOf(callbacks.BeginTransaction).Pointer()
	return func(db *gorm.DB) {
		if p, ok := db.Statement.ConnPool.(*pool); ok && !db.DryRun { // there is no guard, nor are statements prepared
			beginImplicit(db, p, fn)
			return
		}
		if t, _ := transactionOf(db.Statement.ConnPool); t != nil && gorms { // it would make a session, only to find that it cannot
			return
		}
		if fn(db); db.Error == nil {
			_ = db.AddError(begun(db))
		}
	}
}

// enter makes sure that a statement runs under what its guards ask for.
func (p *plugin) enter(db *gorm.DB, op operation) error {
	if len(guardsOf(db.Statement)) == 0 && len(demandOf(db.Statement.Context).keys) == 0 {
		return nil
	}
	if db.DryRun && op.reads { // a subquery, above all: GORM would drop the error and leave a hole in the SQL that it is part of
		return nil
	}
	t, open := transactionOf(db.Statement.ConnPool)
	d, err := p.resolve(db.Statement, open)
	_, evaluating := db.Get(evaluateKey)
	switch {
	case err != nil:
		return err
	case db.DryRun && !evaluating:
		return guardError(d.keys, fmt.Errorf("%w: it sends nothing and locks nothing; leave the guard out", gorm.ErrDryRunModeUnsupported))
	case open && t == nil:
		return guardError(d.keys, ErrUnmanagedTransaction)
	case open:
		if err := t.guard(db.Statement.Context, d); err != nil {
			return err
		}
		db.Statement.Context = t.withLocks(db.Statement.Context)
		return nil
	case op.reads && len(guardsOf(db.Statement)) == 0 && db.Statement.SQL.Len() == 0: // raw SQL may write
		return nil
	case op.reads:
		return guardError(d.keys, fmt.Errorf("%w: the lock would end before what this reads is used; put the guard before .Transaction", ErrNoTransaction))
	}
	return p.openOwn(db, d)
}
