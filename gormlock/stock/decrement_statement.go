package stock

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/onelane/onelane/internal/gormkeys"
)

// decrement is the UPDATE of one [Decrement]. It writes its SET and WHERE when GORM builds the SQL,
// after all scopes and hooks, so nothing can take them out again.
type decrement struct {
	column  clause.Column
	name    string // of the column, as the caller wrote it
	n       int64
	dialect string
	key     *clause.Eq // names the row, beside the conditions of the caller; or nil
	literal bool       // n is a part of the text
	vars    []any      // for the question marks of decrementSQL

	statement *gorm.Statement
	where     []clause.Expression // of the caller, of hooks and of the model
	answer
}

func newDecrement(db *gorm.DB, column string, n int64) (*decrement, error) {
	if n < 1 {
		return nil, errors.New("the quantity must be at least 1")
	}
	if db.DryRun {
		return nil, gorm.ErrDryRunModeUnsupported
	}
	if _, err := gormkeys.DialectOf(db); err != nil {
		return nil, err
	}
	name, _, err := columnOf(db, column)
	if err != nil {
		return nil, err
	}
	return &decrement{column: clause.Column{Name: name}, name: column, n: n, dialect: db.Name()}, nil
}

// run sends the UPDATE in the transaction of db. d.answer has what the UPDATE did.
func (d *decrement) run(db *gorm.DB) error {
	// The last scope, because others may bring conditions, or return another statement.
	err := db.Scopes(d.attach).
		Set(gormkeys.AnyVersion, d.column.Name).Update(d.column.Name, gorm.Expr("?", d)).Error
	if err == nil && !d.sent {
		err = d.replaced()
	}
	return err
}

// decrementSQL is, by dialect, the new value of the column and the condition that there are n. The
// column and n stand for the question marks in turn.
var decrementSQL = map[string]struct{ taken, enough string }{
	// MySQL has no RETURNING, but sends what LAST_INSERT_ID was called with.
	"mysql": {"? - ? + 0 * LAST_INSERT_ID(FLOOR(? - ?) + 1)", "? >= ?"},
	// A bare parameter would get the type of the column, which n may exceed.
	"postgres": {"? - CAST(? AS bigint)", "? >= CAST(? AS bigint)"},
	// SQLite would compare two texts if the column is one, and "5" is greater than "10" then.
	"sqlite": {"? - ?", "CAST(? AS NUMERIC) >= ?"},
}

// expr is one of the texts of decrementSQL for d.
func (d *decrement) expr(text string) clause.Expression {
	if d.vars == nil {
		var column, n any = d.column, d.n
		if d.literal {
			n = literal(d.n)
		}
		d.vars = []any{column, n, column, n}
	}
	return clause.Expr{SQL: text, Vars: d.vars[:strings.Count(text, "?")]}
}

// literal returns an integer as a part of the SQL text, and another value as it is.
func literal(value any) any {
	v := reflect.ValueOf(value)
	if _, decides := value.(driver.Valuer); decides || !v.CanInt() && !v.CanUint() {
		return value
	}
	if v.CanInt() {
		return clause.Expr{SQL: strconv.FormatInt(v.Int(), 10)}
	}
	return clause.Expr{SQL: strconv.FormatUint(v.Uint(), 10)}
}

// attach is a scope that lets d write the statement. GORM would write some associations before the
// statement, when it is not known that there is enough.
func (d *decrement) attach(db *gorm.DB) *gorm.DB {
	d.statement = db.Statement
	d.statement.Omits = append(slices.Clip(d.statement.Omits), clause.Associations)
	d.statement.Clauses["SET"] = clause.Clause{Builder: d.buildSet}
	return db
}

// Build implements clause.Expression. GORM writes d itself as a value if a hook removed the SET of
// d. The statement fails then, because its condition may be gone too.
func (d *decrement) Build(b clause.Builder) {
	_ = b.(*gorm.Statement).AddError(d.replaced())
}

func (d *decrement) replaced() error {
	return fmt.Errorf("stock: decrement column %q by %d: "+
		"a hook or a callback replaced the statement, and nothing was taken", d.column.Name, d.n)
}

// buildSet writes SET, with what GORM's Update sets beside the column, and prepares WHERE.
func (d *decrement) buildSet(given clause.Clause, _ clause.Builder) {
	s := d.statement
	if f, ok := s.Clauses["FROM"].Expression.(clause.From); ok && len(f.Tables)+len(f.Joins) == 0 {
		delete(s.Clauses, "FROM") // an earlier query of the same gorm.DB left it
	}
	// HAVING is a part of GROUP BY.
	for _, name := range []string{"FROM", "GROUP BY"} {
		if s.Clauses[name].Expression != nil && !slices.Contains(s.BuildClauses, name) {
			refuse(s.DB, gorm.ErrInvalidData,
				"an UPDATE has no %s: write the condition as a subquery", name)
			return
		}
	}
	switch {
	case len(s.Joins) > 0:
		refuse(s.DB, gorm.ErrInvalidData, "an UPDATE cannot join: write the condition as a subquery")
		return
	case s.ReflectValue.Kind() == reflect.Slice || s.ReflectValue.Kind() == reflect.Array:
		refuse(s.DB, gorm.ErrInvalidData, "the model is a slice: pass one row, or call DecrementAll")
		return
	}
	enclose(s) // before the keys are added, so that no Or goes around them
	if d.key != nil {
		s.AddClause(clause.Where{Exprs: []clause.Expression{*d.key}})
	}
	d.addZeroParts()
	set := clause.Set{{Column: d.column, Value: d.expr(decrementSQL[d.dialect].taken)}}
	version, _ := given.Expression.(clause.Set)
	for _, a := range append(callbacks.ConvertToAssignments(s), version...) {
		if !strings.EqualFold(a.Column.Name, d.column.Name) {
			set = append(set, a)
		}
	}
	where, _ := s.Clauses["WHERE"].Expression.(clause.Where)
	d.where = where.Exprs
	_, softDelete := s.Clauses["soft_delete_enabled"] // its condition names no row
	if len(d.where) == 0 || softDelete && len(d.where) == 1 {
		if !s.DB.AllowGlobalUpdate {
			_ = s.AddError(fmt.Errorf("stock: decrement column %q: %w: name the row by a Where, "+
				"or by a model with its primary key", d.column.Name, gorm.ErrMissingWhereClause))
			return
		}
	}
	where.Exprs = append([]clause.Expression{d.expr(decrementSQL[d.dialect].enough)}, d.where...)
	s.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: where, Builder: d.buildWhere}
	delete(s.Clauses, "RETURNING")
	// MySQL would take from one of several rows. An earlier Take of the same gorm.DB leaves a
	// limit, too.
	delete(s.Clauses, "ORDER BY")
	delete(s.Clauses, "LIMIT")
	clause.Clause{Name: "SET", Expression: set}.Build(s)
}

// addZeroParts adds the parts of a model's primary key that are zero, which GORM would leave out:
// the statement would take from another row. It skips a part that d.key names, because d.key and
// not the model gives its value.
func (d *decrement) addZeroParts() {
	s, m := d.statement, d.statement.ReflectValue
	if s.Schema == nil || m.Kind() != reflect.Struct || m.Type() != s.Schema.ModelType {
		return
	}
	keyed := slices.ContainsFunc(s.Schema.PrimaryFields, func(pk *schema.Field) bool {
		_, zero := pk.ValueOf(s.Context, m)
		return !zero
	})
	for _, pk := range s.Schema.PrimaryFields {
		if value, zero := pk.ValueOf(s.Context, m); keyed && zero && !d.names(pk.DBName) {
			part := clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: pk.DBName}, Value: value}
			s.AddClause(clause.Where{Exprs: []clause.Expression{part}})
		}
	}
}

// names reports whether d.key names the column.
func (d *decrement) names(column string) bool {
	return d.key != nil && strings.EqualFold(d.key.Column.(clause.Column).Name, column)
}

// buildWhere writes WHERE. It is the last that is written, and GORM sends the statement next.
func (d *decrement) buildWhere(where clause.Clause, _ clause.Builder) {
	s := d.statement
	where.Builder = nil
	where.Build(s)
	if s.DB.Error == nil && !s.DB.DryRun { // it is sent now
		s.ConnPool = &answerPool{s.ConnPool, d}
	}
}

// enclose puts parentheses around each condition of s, or around all if there is an Or between
// them.
func enclose(s *gorm.Statement) {
	where, _ := s.Clauses["WHERE"].Expression.(clause.Where)
	if len(where.Exprs) == 0 {
		return
	}
	var each []clause.Expression
	for _, e := range where.Exprs {
		if _, or := e.(clause.OrConditions); or {
			each = []clause.Expression{gormkeys.Enclosed(where.Exprs)}
			break
		}
		each = append(each, gormkeys.Enclosed{e})
	}
	s.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: each}}
}

// refuse fails a statement that has not failed.
func refuse(db *gorm.DB, err error, format string, args ...any) {
	if db.Error == nil {
		_ = db.AddError(fmt.Errorf("stock: table %q: %s: %w", db.Statement.Table, fmt.Sprintf(format, args...), err))
	}
}
