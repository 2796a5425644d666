package stock

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqlerr"
)

// lookBatches is for how many batches a sale looks for duplicates after it found the last one.
const lookBatches = 64

// looksAhead reports whether duplicates were about lately.
func (s *seller) looksAhead() bool {
	return s.unique != nil && s.looks.Load() > 0 && s.looks.Add(-1) >= 0
}

// uniqueOf returns the values of the unique columns of an order, and a text of them. It returns none
// if one is NULL, which equals nothing, or is the database's default. Others may be equal to the
// database and not here, or the other way round: the text only decides which call waits for another.
func (s *seller) uniqueOf(order reflect.Value) (values []any, text string) {
	var all []byte
	for _, f := range s.uniques {
		raw, zero := f.ValueOf(s.db.Statement.Context, order.Elem())
		v, err := driver.DefaultParameterConverter.ConvertValue(raw)
		if err != nil || v == nil || zero && f.HasDefaultValue {
			return nil, ""
		}
		values = append(values, v)
		all = strconv.AppendQuote(all, textOf(v))
	}
	return values, string(all)
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

// look gives [ErrDuplicate] to the calls whose order is stored, and returns the others. For a single
// call the database decides what is equal.
func (b *batch) look(tx *gorm.DB, calls []*call) (fresh []*call, err error) {
	stored, err := b.stored(tx, calls)
	if err != nil {
		return nil, err
	}
	found := make(map[string]reflect.Value)
	for i := range stored.Len() {
		order := stored.Index(i).Addr()
		_, text := b.uniqueOf(order)
		if len(calls) == 1 {
			text = calls[0].unique
		}
		found[text] = order
	}
	for _, c := range calls {
		order, ok := found[c.unique]
		if !ok || c.values == nil {
			fresh = append(fresh, c)
			continue
		}
		b.looks.Store(lookBatches)
		c.result = result{err: b.failed(b.lane.key, c.n, ErrDuplicate)}
		if b.first {
			c.stored = order
		}
	}
	return fresh, nil
}

// stored returns the stored orders with the unique values of some calls.
func (b *batch) stored(tx *gorm.DB, calls []*call) (orders reflect.Value, err error) {
	var columns []clause.Column
	var names []string
	for _, f := range b.uniques {
		column := clause.Column{Table: b.orders.Table, Name: f.DBName}
		columns, names = append(columns, column), append(names, tx.Statement.Quote(column))
	}
	q := tx.Model(reflect.New(b.orders.ModelType).Interface())
	if !b.first {
		q = q.Clauses(clause.Select{Columns: columns})
	}
	orders = reflect.New(reflect.SliceOf(b.orders.ModelType))
	if b.dialect == "postgres" {
		q, err = b.probe(tx, q, strings.Join(names, ", "), calls)
	} else {
		q = b.among(q, strings.Join(names, ", "), calls)
	}
	if err == nil {
		err = q.Scan(orders.Interface()).Error
	}
	return orders.Elem(), err
}

// among is for MySQL, MariaDB and SQLite.
func (b *batch) among(q *gorm.DB, names string, calls []*call) *gorm.DB {
	var values []any
	for _, c := range calls {
		values = append(values, c.values...)
	}
	row := ", (" + strings.Repeat(", ?", len(b.uniques))[2:] + ")"
	list := strings.Repeat(row, len(values)/len(b.uniques))
	if list == "" {
		return q.Where("1 = 0")
	}
	list = list[2:]
	if b.dialect == "sqlite" {
		list = "VALUES " + list
	}
	return q.Where("("+names+") IN ("+list+")", values...)
}

// probe asks PostgreSQL for the next entry of the unique index from each of the values on. No other
// index answers that, so the plan is good whatever the statistics say. It is made anew each time: one
// from when the table was empty is kept forever, and is thousands of times as slow.
func (b *batch) probe(tx, q *gorm.DB, names string, calls []*call) (*gorm.DB, error) {
	if err := gormkeys.Unprepared(tx).Exec("SET LOCAL plan_cache_mode = force_custom_plan").Error; err != nil {
		return nil, err
	}
	rows := make([]map[string]string, 0, len(calls))
	for _, c := range calls {
		row := make(map[string]string)
		for i, v := range c.values {
			row[b.uniques[i].DBName] = textOf(v)
		}
		if c.values != nil {
			rows = append(rows, row)
		}
	}
	text, err := json.Marshal(rows)
	if err != nil {
		return nil, err
	}
	var sought, found []string
	for _, f := range b.uniques {
		name := tx.Statement.Quote(f.DBName)
		sought, found = append(sought, "v."+name), append(found, "x."+name)
	}
	values := "(" + strings.Join(sought, ", ") + ")"
	next := q.Where("(" + names + ") >= " + values).Order(names).Limit(1)
	// The table's own type has the types of the columns.
	return tx.Raw("SELECT x.* FROM jsonb_populate_recordset(CAST(NULL AS "+tx.Statement.Quote(b.orders.Table)+"), CAST(? AS jsonb)) v, "+
		"LATERAL (?) x WHERE ("+strings.Join(found, ", ")+") = "+values, string(text), next), nil
}

// duplicate reports whether the database refused a row because of a unique index.
func duplicate(err error) bool {
	const uniqueViolation = "23505"
	const sqliteUnique, sqlitePrimaryKey = 2067, 1555
	code, _ := sqlerr.SQLiteCode(err)
	return err != nil && (errors.Is(err, gorm.ErrDuplicatedKey) || sqlerr.PostgresState(err) == uniqueViolation ||
		sqlerr.MySQLNumber(err) == sqlerr.MySQLDuplicate || code == sqliteUnique || code == sqlitePrimaryKey)
}
