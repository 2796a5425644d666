package stock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"
)

// seller is what all sales have, whatever their types.
type seller struct {
	options
	db       *gorm.DB // without conditions
	dialect  string
	begin    *sql.TxOptions
	most     int64 // what the column can hold
	guesses  bool  // GORM counts the ids of several rows from the first one
	key      *schema.Field
	column   *schema.Field
	rows     *schema.Schema
	orders   *schema.Schema
	uniques  []*schema.Field
	cloner   cloner
	reported *instruments

	looks atomic.Int64 // batches that will look for duplicates first
	probe probe
	slots chan struct{} // one for each transaction that may run

	// mu guards the lanes and what is in them.
	mu    sync.Mutex
	lanes map[any]*lane
}

// defaultSlots is how many transactions run if the pool has no bound.
const defaultSlots = 16

func newSeller(db *gorm.DB, row, order reflect.Type, column string, o options) (*seller, error) {
	s := &seller{options: o, lanes: make(map[any]*lane)}
	if err := s.open(db); err != nil {
		return nil, err
	}
	if err := cmp.Or(o.err, s.parse(row, order, column)); err != nil {
		return nil, err
	}
	s.reported = newInstruments(o.meters, o.tracers)
	return s, nil
}

// open takes what a sale needs of db.
func (s *seller) open(db *gorm.DB) error {
	if err := known(db); err != nil {
		return err
	}
	switch {
	case db.Error != nil:
		return db.Error
	case db.DryRun:
		return gorm.ErrDryRunModeUnsupported
	case isOpen(db):
		return fmt.Errorf("db is a transaction: pass the database: %w", gorm.ErrInvalidTransaction)
	}
	s.dialect = db.Name()
	if s.dialect == "postgres" {
		// The row's lock orders the sales. A snapshot of the whole transaction would only fail.
		s.begin = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	s.guesses = s.dialect == "mysql" && !slices.Contains(db.Callback().Create().Clauses, "RETURNING")
	slots := defaultSlots
	if pool, err := db.DB(); err == nil && pool.Stats().MaxOpenConnections > 0 {
		slots = max(1, pool.Stats().MaxOpenConnections-1)
	}
	s.slots = make(chan struct{}, slots)
	s.db = db.Session(&gorm.Session{NewDB: true, Context: db.Statement.Context, SkipDefaultTransaction: true})
	return nil
}

// parse checks the models and finds the fields.
func (s *seller) parse(row, order reflect.Type, column string) (err error) {
	if s.rows, err = schemaOf(s.db, row); err != nil {
		return err
	}
	if s.orders, err = schemaOf(s.db, order); err != nil {
		return err
	}
	if len(s.rows.PrimaryFields) != 1 {
		return fmt.Errorf("%v needs one primary key and has %d", row, len(s.rows.PrimaryFields))
	}
	if s.key = s.rows.PrimaryFields[0]; !s.key.FieldType.Comparable() {
		return fmt.Errorf("the primary key of %v has the type %v, which cannot be compared", row, s.key.FieldType)
	}
	if s.column = s.rows.LookUpField(column); s.column == nil || s.column.DBName == "" {
		return fmt.Errorf("%v has no column %q", row, column)
	}
	if !isInteger(s.column.IndirectFieldType) {
		return fmt.Errorf("column %q has the type %v, which is no integer", column, s.column.FieldType)
	}
	s.most = mostOf(s.column)
	for s.batch&(s.batch-1) != 0 { // to a power of two
		s.batch &= s.batch - 1
	}
	if err := s.findUnique(); err != nil {
		return err
	}
	if s.cloner, err = newCloner(s.db, s.orders); err != nil {
		return err
	}
	s.db = s.db.Session(&gorm.Session{CreateBatchSize: s.rowsPerInsert()})
	return watchAssociations(s.db)
}

func (s *seller) findUnique() error {
	if s.first && len(s.unique) == 0 {
		return errors.New("First needs Unique")
	}
	var names []string
	for _, name := range s.unique {
		f := s.orders.LookUpField(name)
		if f == nil || f.DBName == "" {
			return fmt.Errorf("Unique: %v has no column %q", s.orders.ModelType, name)
		}
		s.uniques, names = append(s.uniques, f), append(names, f.DBName)
	}
	if len(names) == 0 || len(names) == 1 && (s.uniques[0].Unique || slices.Equal(s.orders.PrimaryFieldDBNames, names)) {
		return nil
	}
	for _, index := range s.orders.ParseIndexes() {
		if index.Class != "UNIQUE" || len(index.Fields) != len(names) {
			continue
		}
		if slices.EqualFunc(index.Fields, names, func(f schema.IndexOption, name string) bool { return f.DBName == name }) {
			return nil
		}
	}
	if slices.Equal(s.orders.PrimaryFieldDBNames, names) {
		return nil
	}
	return fmt.Errorf("Unique: %v declares no unique index with the columns %q in this order", s.orders.ModelType, names)
}

// rowsPerInsert is how many rows of the widest table one statement may have parameters for.
func (s *seller) rowsPerInsert() int {
	parameters := 65535
	if s.dialect == "sqlite" {
		parameters = 32766
	}
	columns := 1
	for _, m := range s.cloner.models {
		columns = max(columns, len(m.DBNames))
	}
	return max(1, parameters/columns)
}

// mostOf returns the largest number that a column holds.
func mostOf(f *schema.Field) int64 {
	bits := min(64, max(8, f.Size))
	if bits == 64 || f.DataType != schema.Int && f.DataType != schema.Uint {
		return math.MaxInt64
	}
	if f.DataType == schema.Uint {
		return 1<<bits - 1
	}
	return 1<<(bits-1) - 1
}

func schemaOf(db *gorm.DB, model reflect.Type) (*schema.Schema, error) {
	if model.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%v is no struct", model)
	}
	s := &gorm.Statement{DB: db}
	if err := s.Parse(reflect.New(model).Interface()); err != nil {
		return nil, err
	}
	return s.Schema, nil
}

// row names a row in errors.
func (s *seller) row(key any) string {
	return fmt.Sprintf("table %q where %s", s.rows.Table, s.condition(key))
}

// insufficient returns the error of a call that wants more than is left.
func (s *seller) insufficient(key any, n, left int64) error {
	return s.insufficientIn(s.condition(key), n, left)
}

func (s *seller) insufficientIn(row string, n, left int64) error {
	return &InsufficientError{Table: s.rows.Table, Row: row, Column: s.column.DBName, N: n, Left: left}
}

// condition names a row.
func (s *seller) condition(key any) string { return fmt.Sprintf("%s = %v", s.key.DBName, key) }

// session returns the database for one batch.
func (s *seller) session(ctx context.Context) *gorm.DB { return s.db.WithContext(ctx) }
