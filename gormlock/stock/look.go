package stock

import (
	"bytes"
	"cmp"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/internal/sqlerr"
)

// lookBatches is for how many batches duplicates are looked for after the last one was found.
const lookBatches = 64

func (s *seller) lookAhead() {
	if len(s.uniques) > 0 {
		s.looks.Store(lookBatches)
	}
}

// looksAhead reports whether duplicates were about lately.
func (s *seller) looksAhead() bool {
	return len(s.uniques) > 0 && s.looks.Load() > 0 && s.looks.Add(-1) >= 0
}

// uniqueOf returns the values of the unique columns of an order, and a text of them. The text is
// empty if one is NULL, which equals nothing, or is the database's default. Others may be equal to
// the database and not here, or the other way round: the text only decides which call waits for
// another one.
func (s *seller) uniqueOf(order reflect.Value) (string, []any) {
	var text []byte
	values := make([]any, len(s.uniques))
	for i, f := range s.uniques {
		raw, zero := f.ValueOf(s.db.Statement.Context, order.Elem())
		v, err := driver.DefaultParameterConverter.ConvertValue(raw)
		if err != nil || v == nil || zero && f.HasDefaultValue {
			return "", nil
		}
		values[i] = v
		text = strconv.AppendQuote(text, textOf(v))
	}
	return string(text), values
}

// textOf writes a value as PostgreSQL reads it.
func textOf(v driver.Value) string {
	switch v := v.(type) {
	case int64:
		return strconv.FormatInt(v, 10)
	case string:
		return v
	case []byte:
		return fmt.Sprintf(`\x%x`, v)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprint(v)
}

// compareValues orders the values of unique columns, the same way in each process.
func compareValues(a, b []any) int {
	return slices.CompareFunc(a, b, func(a, b any) int {
		switch a := a.(type) {
		case int64:
			if b, ok := b.(int64); ok {
				return cmp.Compare(a, b)
			}
		case []byte:
			if b, ok := b.([]byte); ok {
				return bytes.Compare(a, b)
			}
		}
		return cmp.Compare(textOf(a), textOf(b))
	})
}

// withoutDuplicates looks for orders that are stored, after the row was locked. It gives their calls
// the error, and returns the others.
func (b *batch) withoutDuplicates(tx *gorm.DB, calls []int) (fresh []int, err error) {
	found, err := b.find(tx, calls)
	if err != nil {
		return nil, failedAt(atRow, err)
	}
	for _, i := range calls {
		if stored, ok := found[b.calls[i].unique]; ok {
			b.fates[i] = b.duplicateFate(b.calls[i], stored)
			b.lookAhead()
		} else {
			fresh = append(fresh, i)
		}
	}
	return fresh, nil
}

func (b *batch) duplicateFate(c *call, stored reflect.Value) fate {
	f := fate{err: fmt.Errorf("stock: sell %d of %s: %w", c.n, b.row(b.lane.key), ErrDuplicate)}
	if b.first {
		f.stored = stored
	}
	return f
}

// find returns the stored orders with the unique values of some calls, by those values.
func (b *batch) find(tx *gorm.DB, calls []int) (map[string]reflect.Value, error) {
	var sought [][]any
	for _, i := range calls {
		if b.calls[i].unique != "" {
			sought = append(sought, b.calls[i].values)
		}
	}
	if len(sought) == 0 {
		return nil, nil
	}
	var q *gorm.DB
	if b.dialect == "postgres" {
		var err error
		if q, err = b.probed(tx, sought); err != nil {
			return nil, err
		}
	} else {
		q = b.selected(tx).Where(b.among(sought))
	}
	orders := reflect.New(reflect.SliceOf(b.orders.ModelType))
	if err := q.Scan(orders.Interface()).Error; err != nil {
		return nil, err
	}
	found := make(map[string]reflect.Value)
	for i := range orders.Elem().Len() {
		order := orders.Elem().Index(i).Addr()
		text, _ := b.uniqueOf(order)
		found[text] = order
	}
	return found, nil
}

// selected selects what find needs of the orders.
func (b *batch) selected(tx *gorm.DB) *gorm.DB {
	q := tx.Model(reflect.New(b.orders.ModelType).Interface())
	if b.first {
		return q
	}
	return q.Clauses(clause.Select{Columns: b.uniqueColumns()})
}

func (b *batch) uniqueColumns() (columns []clause.Column) {
	for _, f := range b.uniques {
		columns = append(columns, clause.Column{Table: clause.CurrentTable, Name: f.DBName})
	}
	return columns
}

// among is the condition for MySQL and SQLite: columns that all values share, and IN for the one
// that differs.
func (b *batch) among(sought [][]any) clause.Expression {
	var all []clause.Expression
	var differ []int
	columns := b.uniqueColumns()
	for i, column := range columns {
		same := !slices.ContainsFunc(sought, func(v []any) bool { return textOf(v[i]) != textOf(sought[0][i]) })
		if same {
			all = append(all, clause.Eq{Column: column, Value: sought[0][i]})
		} else {
			differ = append(differ, i)
		}
	}
	if len(differ) > 0 {
		in := clause.IN{}
		tuple := make([]clause.Column, len(differ))
		for k, i := range differ {
			tuple[k] = columns[i]
		}
		for _, v := range sought {
			values := make([]any, len(differ))
			for k, i := range differ {
				values[k] = v[i]
			}
			if len(differ) == 1 {
				in.Values = append(in.Values, values[0])
			} else {
				in.Values = append(in.Values, values)
			}
		}
		in.Column = tuple
		if len(differ) == 1 {
			in.Column = tuple[0]
		}
		all = append(all, in)
	}
	return clause.And(all...)
}

// probe has the types of the unique columns in PostgreSQL, once they are known.
type probe struct{ types atomic.Pointer[[]string] }

// probed asks PostgreSQL for the next entry of the unique index from each of the values on. No other
// index answers that, so the plan is good whatever the statistics say.
func (b *batch) probed(tx *gorm.DB, sought [][]any) (*gorm.DB, error) {
	types, err := b.uniqueTypes(tx)
	if err != nil {
		return nil, err
	}
	var arrays, names, columns, equal []string
	var args []any
	for i, f := range b.uniques {
		var array strings.Builder
		for k, v := range sought {
			array.WriteString(string("{,"[min(k, 1)]) + `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(textOf(v[i])) + `"`)
		}
		arrays = append(arrays, "CAST(? AS "+types[i]+"[])")
		args = append(args, array.String()+"}")
		name := "k" + strconv.Itoa(i)
		names = append(names, "v."+name)
		columns = append(columns, tx.Statement.Quote(clause.Column{Table: b.orders.Table, Name: f.DBName}))
		equal = append(equal, "x."+tx.Statement.Quote(f.DBName)+" = v."+name)
	}
	from := "(" + strings.Join(columns, ", ") + ") >= (" + strings.Join(names, ", ") + ")"
	next := b.selected(tx).Where(from).
		Clauses(clause.OrderBy{Columns: orderBy(b.uniqueColumns())}).Limit(1)
	text := "SELECT x.* FROM unnest(" + strings.Join(arrays, ", ") + ") v(" + strings.ReplaceAll(strings.Join(names, ", "), "v.", "") +
		"), LATERAL (?) x WHERE " + strings.Join(equal, " AND ")
	return tx.Raw(text, append(args, next)...), nil
}

func orderBy(columns []clause.Column) (by []clause.OrderByColumn) {
	for _, c := range columns {
		by = append(by, clause.OrderByColumn{Column: c})
	}
	return by
}

// uniqueTypes reads the types of the unique columns, as the server names them.
func (b *batch) uniqueTypes(tx *gorm.DB) ([]string, error) {
	if known := b.probe.types.Load(); known != nil {
		return *known, nil
	}
	types := make([]string, len(b.uniques))
	for i, f := range b.uniques {
		err := tx.Raw("SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = CAST(? AS regclass) AND attname = ?",
			tx.Statement.Quote(b.orders.Table), f.DBName).Row().Scan(&types[i])
		if err != nil {
			return nil, fmt.Errorf("the type of column %q: %w", f.DBName, err)
		}
		if types[i] == "character" { // in a CAST that has the length 1
			types[i] = "bpchar"
		}
	}
	b.probe.types.Store(&types)
	return types, nil
}

// duplicate reports whether the database refused a row because of a unique index.
func (b *batch) duplicate(err error) bool {
	const uniqueViolation = "23505"
	const sqliteUnique, sqlitePrimaryKey = 2067, 1555
	code, _ := sqlerr.SQLiteCode(err)
	return err != nil && (errors.Is(err, gorm.ErrDuplicatedKey) || sqlerr.PostgresState(err) == uniqueViolation ||
		sqlerr.MySQLNumber(err) == sqlerr.MySQLDuplicate || code == sqliteUnique || code == sqlitePrimaryKey)
}

// explain returns [ErrDuplicate] for the error of a single order if the stored one is seen, also if
// it is deleted softly, and err otherwise.
func (b *batch) explain(c *call, err error) error {
	if !b.duplicate(err) || c.unique == "" || !b.mayIsolate(err, atOrders) {
		return err
	}
	seen := err
	again := transact(b.session(b.ctx), b.orders.Table, b.begin, func(tx *gorm.DB) error {
		f, err := b.storedFate(tx, c)
		if err == nil && f.err != nil {
			b.fates = []fate{f}
			seen = nil
		}
		return cmp.Or(err, errNobody)
	})
	if !errors.Is(again, errNobody) {
		return errors.Join(err, again)
	}
	return seen
}

// storedFate is that of a refused call: a duplicate, if a stored order is seen.
func (b *batch) storedFate(tx *gorm.DB, c *call) (fate, error) {
	one := &batch{seller: b.seller, ctx: b.ctx, lane: b.lane, calls: []*call{c}, fates: make([]fate, 1)}
	unscoped := tx.Unscoped()
	if b.dialect == "mysql" { // its snapshot may be older than the order that refused c
		unscoped = unscoped.Clauses(newest{})
	}
	found, err := one.find(unscoped.Session(&gorm.Session{}), []int{0})
	if stored, ok := found[c.unique]; ok && err == nil {
		return b.duplicateFate(c, stored), nil
	} else if len(found) == 1 && err == nil { // equal to the database only
		for _, stored := range found {
			return b.duplicateFate(c, stored), nil
		}
	}
	return fate{}, err
}

// newest makes a SELECT of MySQL or MariaDB read the newest row. MariaDB has no FOR SHARE.
type newest struct{}

// Name implements clause.Interface.
func (newest) Name() string { return "FOR" }

// Build implements clause.Expression.
func (newest) Build(b clause.Builder) { _, _ = b.WriteString("LOCK IN SHARE MODE") }

// MergeClause implements clause.Interface.
func (n newest) MergeClause(c *clause.Clause) { c.Name, c.Expression = "", n }
