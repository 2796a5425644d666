package gormlock

import (
	"database/sql"
	"database/sql/driver"
	"reflect"
)

var valuerType = reflect.TypeFor[driver.Valuer]()

// tryValuers calls the driver.Valuers that database/sql is about to call. If one panics inside
// database/sql, in a query or a prepared statement, the transaction can never end. Commit and
// Rollback wait for its connection forever.
func tryValuers(args []any) {
	for _, arg := range args {
		if named, ok := arg.(sql.NamedArg); ok {
			arg = named.Value
		}
		valuer, ok := arg.(driver.Valuer)
		if !ok {
			continue
		}
		if v := reflect.ValueOf(valuer); v.Kind() == reflect.Pointer && v.IsNil() && v.Type().Elem().Implements(valuerType) {
			continue // NULL
		}
		_, _ = valuer.Value()
	}
}

// tryValuers calls the driver.Valuers under a guard only, so that nothing changes without one.
func (t *transaction) tryValuers(args []any) {
	if t.guarded() {
		tryValuers(args)
	}
}
