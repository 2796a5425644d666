package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/idempotency"
)

const (
	sku   = 42
	price = 995 // cents for one unit
)

// Stock is what is on sale.
type Stock struct {
	SKU       int64 `gorm:"primaryKey;autoIncrement:false"`
	Remaining int64
}

// TableName keeps the example's tables apart from others in a shared database.
func (Stock) TableName() string { return "shop_stock" }

// Order holds units for a buyer. Its id is derived from the buyer's idempotency key, and is the key of
// the charge at the provider: one key from end to end.
type Order struct {
	ID    string `gorm:"primaryKey;size:32"`
	SKU   int64
	Units int64
	Buyer string `gorm:"size:64"`
	State string `gorm:"size:16;index:idx_shop_orders_expiry,priority:1"`
	Until int64  `gorm:"index:idx_shop_orders_expiry,priority:2"` // Unix milliseconds
}

// TableName keeps the example's tables apart from others in a shared database.
func (Order) TableName() string { return "shop_orders" }

func (o *Order) cents() int64 { return o.Units * price }

// An order is reserved. Then it becomes what the provider says about its charge, once and for all. It
// is confirmed if the buyer has paid. It is declined if the card is, and expired if nobody paid in
// time: its units are back on sale.
const (
	reserved  = "reserved"
	confirmed = "confirmed"
	declined  = "declined"
	expired   = "expired"
)

// shop sells from one database. Any number of processes may each have one.
type shop struct {
	db       *gorm.DB
	locker   *core.Locker
	sale     *stock.Sale[Stock, Order]
	provider payments
	hold     time.Duration // how long a buyer has to pay
	now      func() time.Time
}

func newShop(db *gorm.DB, locker *core.Locker, provider payments, hold time.Duration) (*shop, error) {
	// Units come back at any time: this process turns nobody away from memory.
	sale, err := stock.NewSale[Stock, Order](db, "remaining", stock.Unique("id"), stock.Remember(0))
	return &shop{db, locker, sale, provider, hold, time.Now}, err
}

// routes are the middlewares in their order: recovery, authentication, idempotency, handler.
func (s *shop) routes() (*gin.Engine, error) {
	r := gin.New()
	r.Use(gin.Recovery(), login)
	once := ginlock.ByHeader("Idempotency-Key", idempotency.WithLocker(s.locker), idempotency.Service("shop"),
		idempotency.Require(), idempotency.Wait(5*time.Second),
		// After a crash a retry runs the handler again. Each of its steps is harmless to repeat.
		idempotency.RunAgain())
	r.POST("/orders", once, s.order)
	return r, ginlock.Check(r, "POST /orders")
}

// login stands for a real one: the bearer token is the buyer.
func login(c *gin.Context) {
	buyer, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if !ok || buyer == "" || len(buyer) > 64 {
		c.AbortWithStatusJSON(http.StatusUnauthorized, gin.H{"error": "who are you?"})
		return
	}
	c.Set(gin.AuthUserKey, buyer)
}

// order reserves units, charges the buyer, and confirms the order or gives the units back. It may die
// at any point and run again, also beside a run that stands still: the id makes each step happen once.
func (s *shop) order(c *gin.Context) {
	var ask struct {
		Units int64 `json:"units" binding:"required,min=1,max=10"`
	}
	if err := c.ShouldBindJSON(&ask); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	ctx := c.Request.Context()
	id, err := idempotency.DeriveKey(ctx, "order")
	if err != nil {
		ginlock.Fail(c, err)
		return
	}
	until := s.now().Add(s.hold).UnixMilli()
	o := Order{id, sku, ask.Units, c.GetString(gin.AuthUserKey), reserved, until}
	switch err := s.buy(ctx, &o); {
	case errors.Is(err, stock.ErrInsufficient):
		c.JSON(http.StatusGone, gin.H{"error": "sold out"})
		return
	case errors.Is(err, errOtherQuantity):
		c.JSON(http.StatusUnprocessableEntity, gin.H{"error": err.Error()})
		return
	case errors.Is(err, errNotKnown):
		// A retry finds the reservation and the charge. If none comes, the sweep does.
		slog.WarnContext(ctx, "an order is not settled yet", "error", err)
		c.Header("Retry-After", "1")
		c.JSON(http.StatusServiceUnavailable, gin.H{"error": "the payment is not known yet: order again with the same key"})
		return
	case err != nil:
		ginlock.Fail(c, err) // 503 if nothing was done: the key is free, and a retry runs
		return
	}
	answers := map[string]int{
		confirmed: http.StatusCreated, declined: http.StatusPaymentRequired, expired: http.StatusGone,
	}
	c.JSON(answers[o.State], gin.H{"order": o.ID, "state": o.State})
}

var (
	// errNotKnown reports that nobody knows yet what became of the order. To run again is harmless.
	errNotKnown = errors.New("the order is not settled yet")
	// errOtherQuantity reports that the order is there. The middleware has lost its record, or it would
	// have refused the request.
	errOtherQuantity = errors.New("the key was used for another quantity")
)

// buy takes the units and stores the order, both or neither. Then it charges the buyer and settles the
// order. If an earlier run has stored the order, o becomes the stored order.
func (s *shop) buy(ctx context.Context, o *Order) error {
	if _, err := s.sale.Sell(ctx, o.SKU, o.Units, o); err != nil {
		// ErrDuplicate says that the order is there. So may others be: the last unit is sold out
		// for a second run because the first one has it, or COMMIT was not answered.
		var earlier Order
		found := s.db.WithContext(ctx).Clauses(primary).Limit(1).Find(&earlier, "id = ?", o.ID)
		switch {
		case found.Error != nil:
			return fmt.Errorf("%w: %w", errNotKnown, found.Error)
		case found.RowsAffected == 0:
			return err
		case earlier.Units != o.Units:
			return errOtherQuantity
		}
		*o = earlier
	}
	if o.State != reserved {
		return nil
	}
	state, err := s.provider.charge(ctx, o.ID, o.Buyer, o.cents())
	if err == nil {
		err = s.settle(ctx, o, state)
	}
	if err != nil {
		return fmt.Errorf("%w: order %s: %w", errNotKnown, o.ID, err)
	}
	return nil
}

// primary makes a SELECT ask the primary (FOR UPDATE). dbresolver and proxies send others to a
// replica, which may not have yet what was written last.
var primary = clause.Locking{Strength: clause.LockingStrengthUpdate}

var errSettled = errors.New("the order is settled")

// settle makes a reserved order what the provider decided. Only one call finds it reserved. Another
// one finds the same decision, because the provider never changes it.
func (s *shop) settle(ctx context.Context, o *Order, state string) error {
	err := s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if state != confirmed { // the stock is first, as in a sale
			back := tx.Model(&Stock{}).Where("sku = ?", o.SKU).
				Update("remaining", gorm.Expr("remaining + ?", o.Units))
			if back.Error == nil && back.RowsAffected == 0 { // MariaDB may say so after KILL QUERY
				return gorm.ErrRecordNotFound
			}
			if back.Error != nil {
				return back.Error
			}
		}
		moved := tx.Model(&Order{}).Where("id = ? AND state = ?", o.ID, reserved).Update("state", state)
		if moved.Error == nil && moved.RowsAffected == 0 {
			return errSettled
		}
		return moved.Error
	})
	if err != nil && !errors.Is(err, errSettled) {
		return fmt.Errorf("settle as %s: %w", state, err)
	}
	o.State = state
	return nil
}
