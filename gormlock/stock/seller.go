package stock

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/onelane/onelane/internal/gormkeys"
)

// seller is what all sales have, whatever their types.
type seller struct {
	options
	db       *gorm.DB // without conditions
	dialect  string
	rows     *schema.Schema
	key      *schema.Field
	column   *schema.Field
	most     int64 // what the column can hold
	orders   *schema.Schema
	uniques  []*schema.Field
	guesses  bool // GORM counts the ids of several rows from the first one
	literals bool // keys and quantities are a part of the text
	reported *instruments

	looks      atomic.Int64  // batches that will look for duplicates first
	explicit   atomic.Bool   // transactions ask for READ COMMITTED
	levelKnown atomic.Bool   // PostgreSQL has said whether they must
	slots      chan struct{} // one for each transaction that may run

	// mu guards the lanes and what is in them.
	mu    sync.Mutex
	lanes map[any]*lane
}

// defaultSlots is how many transactions run if the pool has no bound.
const defaultSlots = 16

// open takes what a sale needs of db, and checks the models.
func (s *seller) open(db *gorm.DB, row, order reflect.Type, column string) error {
	if _, err := gormkeys.DialectOf(db); err != nil {
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
	s.guesses = s.dialect == "mysql" && !slices.Contains(db.Callback().Create().Clauses, "RETURNING")
	// The driver prepares each statement with parameters, which is a round trip. GORM would keep each
	// of these texts.
	s.literals = s.dialect == "mysql" && !db.PrepareStmt
	s.explicit.Store(s.dialect == "postgres") // until its default is known
	slots := defaultSlots
	if pool, err := db.DB(); err == nil && pool.Stats().MaxOpenConnections > 0 {
		slots = max(1, pool.Stats().MaxOpenConnections-1)
	}
	s.slots = make(chan struct{}, slots)
	// Initialized leaves the conditions behind. NewDB alone would hide them until the next session.
	s.db = db.Session(&gorm.Session{NewDB: true, Initialized: true, Context: db.Statement.Context, SkipDefaultTransaction: true})
	s.reported = newInstruments(s.meters, s.tracers)
	for _, step := range []func() error{
		s.options.check,
		func() error { return s.parseRow(row, column) },
		func() error { return s.parseOrder(order) },
		func() error { return watchAssociations(s.db) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	s.batch = rounded(s.batch, 1)
	return nil
}

func (s *seller) parseRow(row reflect.Type, column string) (err error) {
	if s.rows, err = schemaOf(s.db, row); err != nil {
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
	s.most = math.MaxInt64
	if bits := max(8, s.column.Size); s.column.DataType == schema.Int && bits < 64 {
		s.most = 1<<(bits-1) - 1
	} else if s.column.DataType == schema.Uint && bits < 63 {
		s.most = 1<<bits - 1
	}
	return nil
}

func (s *seller) parseOrder(order reflect.Type) (err error) {
	if s.orders, err = schemaOf(s.db, order); err != nil {
		return err
	}
	if err := s.parseUnique(); err != nil {
		return err
	}
	parameters, columns := 65535, 1
	if s.dialect == "sqlite" {
		parameters = 32766
	}
	for _, m := range withAssociations(s.orders, nil) {
		columns = max(columns, len(m.DBNames))
		for _, f := range m.Fields {
			if slices.ContainsFunc(f.StructField.Index, func(i int) bool { return i < 0 }) {
				return fmt.Errorf("%v embeds the struct of field %s by a pointer: embed the struct itself", m.ModelType, f.Name)
			}
		}
	}
	s.db = s.db.Session(&gorm.Session{NewDB: true, CreateBatchSize: max(1, parameters/columns)})
	return nil
}

// parseUnique finds the columns of [Unique], which must be those of a unique index.
func (s *seller) parseUnique() error {
	if s.unique == nil {
		return nil
	}
	var names []string
	for _, name := range s.unique {
		f := s.orders.LookUpField(name)
		if f == nil || f.DBName == "" {
			return fmt.Errorf("Unique: %v has no column %q", s.orders.ModelType, name)
		}
		s.uniques, names = append(s.uniques, f), append(names, f.DBName)
	}
	declared := len(names) == 1 && s.uniques[0].Unique || slices.Equal(s.orders.PrimaryFieldDBNames, names)
	for _, index := range s.orders.ParseIndexes() {
		same := slices.EqualFunc(index.Fields, names, func(f schema.IndexOption, name string) bool { return f.DBName == name })
		declared = declared || same && index.Class == "UNIQUE"
	}
	if !declared {
		return fmt.Errorf("Unique: %v declares no unique index with the columns %q in this order", s.orders.ModelType, names)
	}
	return nil
}

func schemaOf(db *gorm.DB, model reflect.Type) (*schema.Schema, error) {
	if model.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%v is no struct", model)
	}
	s := &gorm.Statement{DB: db}
	err := s.Parse(reflect.New(model).Interface())
	return s.Schema, err
}

// failed returns the error of a call.
func (s *seller) failed(key any, n int64, err error) error {
	return fmt.Errorf("stock: sell %d of table %q where %s: %w", n, s.rows.Table, s.condition(key), err)
}

// insufficient returns the error of a call that wants more than is left.
func (s *seller) insufficient(key any, n, left int64) *InsufficientError {
	return &InsufficientError{Table: s.rows.Table, Row: s.condition(key), Column: s.column.DBName, N: n, Left: left}
}

// condition names a row.
func (s *seller) condition(key any) string { return fmt.Sprintf("%s = %v", s.key.DBName, key) }
