package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/gormlock/stock"
)

// Stock is what the sale has to sell.
type Stock struct {
	SKU       int `gorm:"primaryKey;autoIncrement:false"`
	Remaining int64
}

// Reservation holds units for a buyer until the payment arrives.
type Reservation struct {
	ID    string `gorm:"primaryKey;size:64"` // the buyer's order; a retry has the same
	SKU   int
	Units int64
	State string `gorm:"size:16;index:idx_expiry,priority:1"`
	Until int64  `gorm:"index:idx_expiry,priority:2"` // Unix milliseconds
}

// A reservation is reserved, and then confirmed or returned, once and for ever.
const (
	reserved  = "reserved"
	confirmed = "confirmed"
	returned  = "returned"
)

const sweepBatch = 100

var (
	errExpired   = errors.New("the reservation has expired or was canceled")
	errConfirmed = errors.New("the reservation is confirmed")
)

// primary makes a SELECT ask the primary (FOR UPDATE). dbresolver and proxies send others to a
// replica, which may not have yet what was written last.
var primary = clause.Locking{Strength: clause.LockingStrengthUpdate}

// shop sells from one database. Any number of processes may each have one.
type shop struct {
	db   *gorm.DB
	sale *stock.Sale[Stock, Reservation]
	hold time.Duration // how long a buyer has to pay
	now  func() time.Time
}

func newShop(db *gorm.DB, hold time.Duration, now func() time.Time) (*shop, error) {
	// Units come back at any time: nobody is turned away by what this process remembers.
	sale, err := stock.NewSale[Stock, Reservation](db, "remaining", stock.Unique("id"), stock.Remember(0))
	return &shop{db, sale, hold, now}, err
}

// reserve takes units for the order id. If it returns an error that it does not know, call it again
// with the same id: an order takes its units once.
func (s *shop) reserve(ctx context.Context, id string, sku int, units int64) error {
	db := s.db.WithContext(ctx)
	until := s.now().Add(s.hold).UnixMilli()
	_, err := s.sale.Sell(ctx, sku, units, &Reservation{id, sku, units, reserved, until})
	if err == nil {
		return nil
	}
	var earlier Reservation
	switch found := db.Clauses(primary).Limit(1).Find(&earlier, "id = ?", id); {
	case found.Error != nil:
		return errors.Join(err, found.Error)
	case found.RowsAffected == 0:
		return err
	// A database that ignores case finds "ann" for "ANN", which is another order and holds nothing.
	case earlier.ID != id || earlier.SKU != sku || earlier.Units != units:
		return fmt.Errorf("order %s was used for %d of %d: %w", id, earlier.Units, earlier.SKU, err)
	// confirm refuses it from now on, whether a sweep has come or not.
	case earlier.State == returned, earlier.State == reserved && earlier.Until <= s.now().UnixMilli():
		return fmt.Errorf("order %s: %w", id, errExpired)
	}
	return nil
}

// confirm makes a reservation a sale: call it when the payment arrived, and pay the buyer back if
// it returns errExpired. It does not tell a second payment from a second call. Charge each order
// under one idempotency key, made of its id, and pay it back under another one. The WHERE decides
// between it and a sweep: only one of them finds "reserved". After another error, call it again.
func (s *shop) confirm(ctx context.Context, id string) error {
	db := s.db.WithContext(ctx)
	moved := db.Model(&Reservation{}).
		Where("id = ? AND state = ? AND until > ?", id, reserved, s.now().UnixMilli()).
		Update("state", confirmed)
	if moved.Error != nil || moved.RowsAffected == 1 {
		return moved.Error
	}
	var r Reservation
	if err := db.Clauses(primary).Take(&r, "id = ?", id).Error; err != nil {
		return fmt.Errorf("order %s: %w", id, err)
	}
	// The buyer is paid back after errExpired. Another call, by a clock that is behind, must not
	// confirm the order then.
	if r.State == reserved {
		if err := s.giveBack(ctx, r); err != nil {
			return err
		}
	}
	return s.expect(db, id, confirmed, errExpired)
}

// cancel gives the units of a reservation back before it expires.
func (s *shop) cancel(ctx context.Context, id string) error {
	var r Reservation
	if err := s.db.WithContext(ctx).Clauses(primary).Take(&r, "id = ?", id).Error; err != nil {
		return fmt.Errorf("order %s: %w", id, err)
	}
	if err := s.giveBack(ctx, r); err != nil {
		return err
	}
	return s.expect(s.db.WithContext(ctx), id, returned, errConfirmed)
}

// sweep gives back what expired. Run it every few seconds, in as many processes as you like.
func (s *shop) sweep(ctx context.Context) error {
	var expired []Reservation
	err := s.db.WithContext(ctx).Where("state = ? AND until <= ?", reserved, s.now().UnixMilli()).
		Order("until").Limit(sweepBatch).Find(&expired).Error
	for _, r := range expired {
		err = errors.Join(err, s.giveBack(ctx, r))
	}
	return err
}

var errNotReserved = errors.New("it was confirmed or returned meanwhile")

// giveBack returns the units of a reservation, unless it was confirmed or returned meanwhile. It
// locks the stock first, as a sale does.
func (s *shop) giveBack(ctx context.Context, r Reservation) error {
	err := s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		back := tx.Model(&Stock{}).Where("sku = ?", r.SKU).
			Update("remaining", gorm.Expr("remaining + ?", r.Units))
		if back.Error == nil && back.RowsAffected == 0 { // MariaDB may say so after KILL QUERY
			return gorm.ErrRecordNotFound
		}
		if back.Error != nil {
			return back.Error
		}
		moved := tx.Model(&Reservation{}).Where("id = ? AND state = ?", r.ID, reserved).
			Update("state", returned)
		if moved.Error == nil && moved.RowsAffected == 0 {
			return errNotReserved
		}
		return moved.Error
	})
	if errors.Is(err, errNotReserved) {
		return nil
	}
	return err
}

// expect returns otherwise, unless the order is in a state already.
func (s *shop) expect(db *gorm.DB, id, state string, otherwise error) error {
	var r Reservation
	if err := db.Clauses(primary).Take(&r, "id = ?", id).Error; err != nil {
		return fmt.Errorf("order %s: %w", id, err)
	}
	if r.State != state {
		return fmt.Errorf("order %s: %w", id, otherwise)
	}
	return nil
}
