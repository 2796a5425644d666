package gormlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
)

const (
	associationMethod = "(*Association)."
	// associationsOfSet is what Set of gorm.G calls for each clause.Association.
	associationsOfSet = "setCreateOrUpdateG[...].executeAssociationOperation"
	// batchesMethod ends the names of gorm.DB's method and of gorm.G's.
	batchesMethod = ".CreateInBatches"
)

// oneStatement refuses a guarded statement outside a transaction if GORM runs it as one of several.
// Each would have a lock and a transaction to itself, and nothing tells which of them is the last.
func oneStatement(s *gorm.Statement, op operation) error {
	method := calledMethod()
	associates := strings.HasPrefix(method, associationMethod) || method == associationsOfSet
	if method != "(*DB).FirstOrCreate" && (op.reads || !associates) && !batched(s, method) {
		return nil
	}
	keys := demandOf(s.Context).keys
	for _, g := range guardsOf(s) {
		keys = append(keys[:len(keys):len(keys)], g.key)
	}
	return severalStatements(keys, method)
}

// severalStatements is the error of a method of GORM that is refused outside a transaction.
func severalStatements(keys []string, method string) error {
	return guardError(keys, fmt.Errorf("%w: %s is several statements, which need one lock and one transaction: "+
		"call it in gormlock.Transaction", ErrNoTransaction, methodName(method)))
}

// batched reports whether a create may be one of several batches without a transaction. GORM does
// not tell the plugin how many there are.
func batched(s *gorm.Statement, method string) bool {
	if !s.DB.SkipDefaultTransaction {
		return false // GORM begins a transaction for several batches
	}
	if kind := s.ReflectValue.Kind(); kind != reflect.Slice && kind != reflect.Array {
		return false
	}
	return strings.HasSuffix(method, batchesMethod) ||
		method == "(*DB).Create" && s.DB.CreateBatchSize > 0 && s.ReflectValue.Len() >= s.DB.CreateBatchSize
}

// hiddenGuard refuses a create from a map by an association method outside a transaction. GORM runs
// it without the scopes of its caller, so that the plugin cannot see whether there is a guard.
func hiddenGuard(s *gorm.Statement) error {
	if s.ReflectValue.Kind() != reflect.Map {
		return nil
	}
	method := calledMethod()
	if !strings.HasPrefix(method, associationMethod) {
		return nil
	}
	return fmt.Errorf("gormlock: table %q: %w: %s creates rows from maps without the scopes of its caller, and a guard "+
		"among them would be lost: call it in gormlock.Transaction, or in db.Transaction if it needs no guard",
		s.Table, ErrNoTransaction, methodName(method))
}

// calledMethod returns the method of GORM that the application called and that runs the current
// statement, such as "(*Association).Replace", or [associationsOfSet]. Nothing but the stack tells.
func calledMethod() string {
	var counters [48]uintptr
	frames := runtime.CallersFrames(counters[:runtime.Callers(2, counters[:])])
	method := ""
	for {
		frame, more := frames.Next()
		name, ok := strings.CutPrefix(frame.Function, "gorm.io/gorm.")
		switch {
		case name == associationsOfSet:
			return name
		case ok:
			method = name
		case method != "":
			return method
		}
		if !more {
			return method
		}
	}
}

var errNames = errors.New("gormlock: the stack does not name GORM's methods as guards expect: " +
	"use GORM v1.31 or a later version of onelane, and keep the names of gorm.io/gorm when you obfuscate")

// namesKnown reports whether calledMethod finds associationsOfSet in the stack, because GORM does
// not promise that name. It tries a gorm.DB without a database.
var namesKnown = sync.OnceValue(func() bool {
	type probe struct{ ID int }
	db, err := gorm.Open(nil, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return false
	}
	called := ""
	_ = db.Callback().Query().Register("gormlock:probe", func(tx *gorm.DB) {
		called = calledMethod()
		_ = tx.AddError(gorm.ErrDryRunModeUnsupported) // and Set stops
	})
	_, _ = gorm.G[probe](db).Set(clause.Association{Type: clause.OpCreate}).Update(context.Background())
	return called == associationsOfSet
})

// methodName returns a method of calledMethod as users write it.
func methodName(method string) string {
	if strings.HasSuffix(method, batchesMethod) {
		return batchesMethod[1:]
	}
	return strings.NewReplacer(associationsOfSet, "Set with a clause.Association", "(*", "", ")", "").Replace(method)
}
