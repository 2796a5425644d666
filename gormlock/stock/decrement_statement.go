package stock

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

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

	statement *gorm.Statement
	where     []clause.Expression // of the caller, of hooks and of the model
	result    *gorm.DB
	sent      bool
	matched   int64 // rows that were changed
	left      int64 // of the last of them
}

func newDecrement(db *gorm.DB, column string, n int64) (*decrement, error) {
	if n < 1 {
		return nil, errors.New("the quantity must be at least 1")
	}
	if db.DryRun {
		return nil, gorm.ErrDryRunModeUnsupported
	}
	if err := known(db); err != nil {
		return nil, err
	}
	name, _, err := columnOf(db, column)
	if err != nil {
		return nil, err
	}
	return &decrement{column: clause.Column{Name: name}, name: column, n: n, dialect: db.Name()}, nil
}

// known refuses databases that this package does not know.
func known(db *gorm.DB) error {
	if db.Dialector == nil {
		return fmt.Errorf("%w, and this database has no dialector", ErrDialect)
	}
	if _, ok := decrementSQL[db.Name()]; !ok {
		return fmt.Errorf("%w, not on %q", ErrDialect, db.Name())
	}
	return nil
}

// run sends the UPDATE in the transaction of db. It says what it did in d.matched and d.left.
func (d *decrement) run(db *gorm.DB) error {
	// The last scope, because others may bring conditions, or return another statement.
	tx := db.Scopes(d.attach).
		Set(gormkeys.AnyVersion, d.column.Name).Update(d.column.Name, gorm.Expr("?", d))
	d.result = tx
	switch {
	case tx.Error != nil:
		return tx.Error
	case !d.sent:
		return d.replaced()
	}
	return nil
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
	return clause.Expr{SQL: text, Vars: []any{d.column, d.n, d.column, d.n}[:strings.Count(text, "?")]}
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
	s := d.statement
	for _, m := range structsIn(s.ReflectValue) {
		if s.Schema == nil || m.Type() != s.Schema.ModelType {
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
}

// structsIn returns the models in a value: a struct, or a slice of them, or pointers to either.
func structsIn(v reflect.Value) (all []reflect.Value) {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		return []reflect.Value{v}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			all = append(all, structsIn(v.Index(i))...)
		}
	}
	return all
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
		s.ConnPool = &decrementPool{s.ConnPool, d}
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
			each = []clause.Expression{enclosed(where.Exprs)}
			break
		}
		each = append(each, enclosed{e})
	}
	s.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: each}}
}

// enclosed writes conditions in parentheses. GORM writes none around a text with an OR beside a
// line break or a tab. A condition that this package adds would then hold for a part of the text
// only.
type enclosed []clause.Expression

// Build implements clause.Expression.
func (e enclosed) Build(b clause.Builder) {
	_ = b.WriteByte('(')
	clause.Where{Exprs: slices.Clone(e)}.Build(b) // which sorts them
	_ = b.WriteByte(')')
}

// row is what the statement selected, as text.
func (d *decrement) row(db *gorm.DB) string {
	update := db.Statement
	s := &gorm.Statement{DB: db, Context: update.Context, Table: update.Table, Schema: update.Schema}
	where := d.where
	if len(where) == 1 {
		if e, ok := where[0].(enclosed); ok {
			where = e
		}
	}
	clause.Where{Exprs: where}.Build(s)
	for i, v := range s.Vars {
		v, _ = driver.DefaultParameterConverter.ConvertValue(v)
		if b, ok := v.([]byte); ok && bytes.ContainsFunc(b, binary) { // GORM would write <binary>
			s.Vars[i] = fmt.Sprintf("0x%x", b)
		}
	}
	return db.Explain(s.SQL.String(), s.Vars...)
}

// readLeft reads the newest value of the column for an InsufficientError. It returns -1 if there is
// no such number.
func (d *decrement) readLeft(db *gorm.DB) (int64, error) {
	var left []any
	newest := clause.Locking{Strength: clause.LockingStrengthUpdate}
	read := d.pluck(db.Session(&gorm.Session{NewDB: true}).Clauses(newest), &left)
	if read.Error != nil || len(left) != 1 {
		return -1, read.Error
	}
	rest, err := whole(left[0])
	if err != nil {
		return -1, nil
	}
	return rest, nil
}

// pluck reads the column of the rows that the UPDATE selected. db is a session of its own. The
// condition of a soft delete is among the others already.
func (d *decrement) pluck(db *gorm.DB, left any) *gorm.DB {
	s, name := d.statement, d.column.Name
	q := db.Unscoped().Clauses(only(name))
	if len(d.where) > 0 {
		q = q.Clauses(clause.Where{Exprs: d.where})
	}
	if s.Schema != nil { // an empty model, because the caller goes on with that of the UPDATE
		q = q.Model(reflect.New(s.Schema.ModelType).Interface())
	}
	q.Statement.Table, q.Statement.TableExpr = s.Table, s.TableExpr
	return q.Pluck(name, left)
}

func binary(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }

// decrementPool is the connection pool for the one statement of a decrement. It reads what is left
// from the answer, and refuses several rows before the COMMIT.
type decrementPool struct {
	gorm.ConnPool
	d *decrement
}

// ExecContext implements gorm.ConnPool.
func (p *decrementPool) ExecContext(
	ctx context.Context, query string, args ...any,
) (sql.Result, error) {
	d := p.d
	d.statement.ConnPool = p.ConnPool
	d.sent = true
	if err := d.exec(ctx, p.ConnPool, query, args); err != nil {
		return nil, err
	}
	if d.matched == 0 { // nothing was taken: run no hook, write no association
		d.statement.SkipHooks = true
		d.statement.Omits = append(d.statement.Omits, clause.Associations)
	}
	return driver.RowsAffected(d.matched), nil
}

// exec runs the UPDATE.
func (d *decrement) exec(ctx context.Context, c gorm.ConnPool, query string, args []any) error {
	read := d.readReturned
	if d.dialect == "mysql" {
		read = d.readInsertID
	}
	if err := read(ctx, c, query, args); err != nil {
		return err
	}
	if d.matched > 1 {
		return fmt.Errorf("stock: decrement column %q of table %q: the condition selects %d rows, "+
			"and nothing is taken: name one row by a unique key, or call DecrementAll",
			d.column.Name, d.statement.Table, d.matched)
	}
	return nil
}

// readInsertID is for MySQL and MariaDB. LAST_INSERT_ID is one more than what is left, so it is
// never 0. If a trigger of the table inserts, the answer to an UPDATE has 0. Then the connection
// knows LAST_INSERT_ID.
func (d *decrement) readInsertID(
	ctx context.Context, c gorm.ConnPool, query string, args []any,
) error {
	result, err := c.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	if d.matched, err = result.RowsAffected(); err != nil {
		return err
	}
	id, err := result.LastInsertId()
	if err == nil && id == 0 && d.matched == 1 {
		rows, failed := c.QueryContext(ctx, "SELECT LAST_INSERT_ID()") // GORM's Row panics if it cannot prepare
		if failed != nil {
			return failed
		}
		defer rows.Close()
		for rows.Next() {
			err = errors.Join(err, rows.Scan(&id))
		}
		err = errors.Join(err, rows.Err())
	}
	d.left = id - 1
	return err
}

// readReturned is for PostgreSQL and SQLite.
func (d *decrement) readReturned(
	ctx context.Context, c gorm.ConnPool, query string, args []any,
) error {
	rows, err := c.QueryContext(ctx, query+" RETURNING "+d.statement.Quote(d.column), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var left any
		if err := rows.Scan(&left); err != nil {
			return err
		}
		if d.left, err = whole(left); err != nil {
			return err
		}
		d.matched++
	}
	return errors.Join(rows.Err(), rows.Close())
}

// whole returns a number as the driver of a database has it, rounded down.
func whole(value any) (int64, error) {
	if b, ok := value.([]byte); ok {
		value = string(b)
	}
	text := fmt.Sprint(value)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("stock: a decrement left %q, which is no number; the column must have an integer type", text)
	}
	return int64(math.Floor(f)), nil
}

// refuse fails a statement that has not failed.
func refuse(db *gorm.DB, err error, format string, args ...any) {
	if db.Error == nil {
		_ = db.AddError(fmt.Errorf("stock: table %q: %s: %w", db.Statement.Table, fmt.Sprintf(format, args...), err))
	}
}
