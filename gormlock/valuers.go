package gormlock

import (
	"database/sql"
	"database/sql/driver"
	"reflect"
)

var valuerType = reflect.TypeFor[driver.Valuer]()

// tryValuers calls what database/sql is about to call. Where it panics there, in a query or a
// prepared statement, the transaction can never end: its Commit and Rollback wait for the
// connection for ever.
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

// tryValuers does so under a guard; without one nothing changes.
func (t *transaction) tryValuers(args []any) {
	if t.guarded() {
		tryValuers(args)
	}
}
