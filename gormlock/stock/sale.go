package stock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"go.opentelemetry.io/otel"
	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
)

// Sale sells from the rows of one table: it takes from a column, and stores the orders that this
// pays for. Make one for each table and type of order with [NewSale], and use it from many
// goroutines.
type Sale[Row, Order any] struct{ *seller }

// NewSale returns a Sale that takes from a column of Row and stores an Order for each call:
//
//	sale, err := stock.NewSale[Stock, Order](db, "remaining", stock.Unique("sku", "buyer"))
//
// The column is the name of a field or of a column, of an integer type. Row needs a single primary
// key. NewSale takes db's connections, its context and its configuration, and none of its
// conditions. All statements run with that context, so a tenant or a user belongs in the fields of
// the order. If db's pool is bounded, a Sale uses all of its connections but one. Bound it before.
func NewSale[Row, Order any](db *gorm.DB, column string, opts ...Option) (*Sale[Row, Order], error) {
	o := options{
		batch: defaultBatch, waiting: defaultWaiting, within: defaultWithin, memory: defaultRemember,
		meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider(),
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	s := &seller{options: o, lanes: make(map[any]*lane)}
	if err := s.open(db, reflect.TypeFor[Row](), reflect.TypeFor[Order](), column); err != nil {
		return nil, fmt.Errorf("stock: a sale of %v for %v: %w", reflect.TypeFor[Row](), reflect.TypeFor[Order](), err)
	}
	return &Sale[Row, Order]{s}, nil
}

// Sell takes n units from the row with this primary key and stores the order, both or neither. It
// returns what was left after this order:
//
//	left, err := sale.Sell(ctx, 42, 1, &Order{SKU: 42, Buyer: 7, N: 1})
//
// If err is nil, all is committed and order has its ids. After every error but [ErrCommitUnknown]
// nothing was stored, and order is as it was:
//
//   - [InsufficientError]: too little is left. Its Left is exact, or as old as [Remember] allows.
//   - [ErrDuplicate]: an order with the values of [Unique] is stored. With [First] it is in order.
//   - [ErrClosed], gorm.ErrRecordNotFound: the row does not match [If], or is not there.
//   - [ErrBusy]: the line of the row is full.
//   - An error of the context: it ended while the call waited in line.
//   - An error of the database or of a hook. It is about this order alone, or about the whole batch
//     if the database failed.
//
// Calls for one row share transactions, in the order in which they came. While the transaction of a
// call runs, the end of its context no longer withdraws it: Sell returns the true result.
//
// The key may have any integer type if that of the field is one. Hooks of the order run for a copy
// of it, with the context of [NewSale], and up to three times. They must have no effects outside of
// the transaction. Do not call Sell in a transaction: it commits by itself.
func (s *Sale[Row, Order]) Sell(ctx context.Context, key any, n int64, order *Order) (left int64, err error) {
	id, err := s.keyOf(key)
	switch {
	case err != nil:
	case n < 1:
		err = errors.New("the quantity must be at least 1")
	case n > s.most:
		err = fmt.Errorf("the column holds %d at most", s.most)
	case order == nil:
		err = fmt.Errorf("the order is nil: %w", gorm.ErrInvalidData)
	case gormkeys.TransactionOf(ctx) != nil:
		err = errors.New("the context belongs to an open transaction, and a sale commits by itself: " +
			"call Sell outside of it, or stock.Decrement inside")
	default:
		err = ctx.Err()
	}
	if err != nil {
		return 0, s.failed(key, n, fmt.Errorf("nothing was done: %w", err))
	}
	if short := s.remembered(id, n); short != nil {
		s.reported.remembered(ctx)
		return 0, short
	}
	c := &call{ctx: ctx, n: n, order: reflect.ValueOf(order), asked: time.Now(), done: make(chan struct{})}
	c.values, c.unique = s.uniqueOf(c.order)
	s.sell(id, c)
	if p, ok := errors.AsType[*panicError](c.err); ok {
		p.again()
	}
	if c.stored.IsValid() {
		*order = *c.stored.Interface().(*Order)
	}
	return c.left, c.err
}

// keyOf returns the key of a row in the type of its field.
func (s *seller) keyOf(key any) (any, error) {
	v, to := reflect.ValueOf(key), s.key.FieldType
	switch {
	case !v.IsValid():
	case v.Type() == to:
		return key, nil
	case isInteger(v.Type()) && isInteger(to), v.Kind() == to.Kind() && v.CanConvert(to):
		negative := func(v reflect.Value) bool { return v.CanInt() && v.Int() < 0 }
		if k := v.Convert(to); k.Convert(v.Type()).Equal(v) && negative(k) == negative(v) {
			return k.Interface(), nil
		}
	}
	return nil, fmt.Errorf("%w: the key has the type %T, and field %s has the type %v", gorm.ErrInvalidData, key, s.key.Name, to)
}

func isInteger(t reflect.Type) bool {
	v := reflect.Zero(t)
	return v.CanInt() || v.CanUint()
}
