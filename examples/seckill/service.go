package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/idempotency"
	"gorm.io/gorm"
)

// service sells units of one SKU over HTTP: by a declared sale, by naive code under a guard, or by
// naive code alone.
type service struct {
	db                 *gorm.DB
	guarded, unguarded bool
	records            *core.Locker
	sale               atomic.Pointer[stock.Sale[Stock, Order]] // nil for naive code
}

// routes are the service as a team would write it: authentication, then idempotency, then the
// handler.
func (s *service) routes() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(authenticate)
	if !s.unguarded {
		r.Use(ginlock.ByHeader("Idempotency-Key", idempotency.WithLocker(s.records), idempotency.Service(s.name())))
	}
	r.POST("/orders", s.buy)
	return r
}

// name tells the services on one Redis apart.
func (s *service) name() string {
	if s.guarded {
		return "guarded shop"
	}
	return "shop"
}

// authenticate stands for a real login: the bearer token is the buyer.
func authenticate(c *gin.Context) {
	buyer, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if !ok || buyer == "" || len(buyer) > 64 {
		c.AbortWithStatusJSON(http.StatusUnauthorized, gin.H{"error": "who are you?"})
		return
	}
	c.Set(gin.AuthUserKey, buyer)
}

var errSoldOut = errors.New("sold out")

// buy sells one unit, and says how that went.
func (s *service) buy(c *gin.Context) {
	order := Order{SKU: sku, Buyer: c.GetString(gin.AuthUserKey)}
	err := s.sell(c.Request.Context(), &order)
	switch {
	case errors.Is(err, errSoldOut), errors.Is(err, stock.ErrInsufficient):
		c.JSON(http.StatusGone, gin.H{"error": "sold out"})
	case err != nil:
		ginlock.Fail(c, err) // if nothing was done, the key is free and the buyer may try again
	default:
		c.JSON(http.StatusCreated, gin.H{"order": order.ID})
	}
}

// sell takes a unit from the stock and stores the order.
func (s *service) sell(ctx context.Context, order *Order) error {
	switch {
	case s.unguarded:
		return naive(s.db.WithContext(ctx), order)
	case s.guarded:
		return s.db.WithContext(ctx).Scopes(gormlock.Guard("stock:42")).Transaction(func(tx *gorm.DB) error {
			return naive(tx, order)
		})
	default:
		_, err := s.sale.Load().Sell(ctx, sku, 1, order)
		return err
	}
}

// naive is the read, check, write that every tutorial has.
func naive(db *gorm.DB, order *Order) error {
	var row Stock
	if err := db.First(&row, "sku = ?", sku).Error; err != nil {
		return err
	}
	if row.Left < 1 {
		return errSoldOut
	}
	if err := db.Model(&row).Update("left", row.Left-1).Error; err != nil {
		return err
	}
	return db.Create(order).Error
}

// prepare makes the books of a new sale.
func (s *service) prepare(units int) error {
	if err := prepare(s.db, units); err != nil {
		return err
	}
	return s.declare()
}

// declare declares the sale. A Sale remembers for a moment that everything is sold, so new books need
// a new one.
func (s *service) declare() error {
	if s.guarded || s.unguarded {
		return nil
	}
	sale, err := stock.NewSale[Stock, Order](s.db, "left")
	s.sale.Store(sale)
	return err
}

// start opens Redis and the database and serves on a free loopback port. stop waits for what is
// under way.
func start(ctx context.Context, o options) (addr string, stop func(), err error) {
	s, closeAll, err := open(ctx, o)
	if err != nil {
		return "", nil, err
	}
	var shutdown func()
	if err = s.declare(); err == nil {
		addr, shutdown, err = listen(s.routes())
	}
	if err != nil {
		closeAll()
		return "", nil, err
	}
	return addr, func() { shutdown(); closeAll() }, nil
}

// open opens the database, and the locks if the service is guarded.
func open(ctx context.Context, o options, opts ...core.Option) (s *service, stop func(), err error) {
	var stops []func()
	all := func() {
		for _, s := range slices.Backward(stops) {
			s()
		}
	}
	defer func() {
		if err != nil {
			all()
		}
	}()
	db, err := openDB(ctx, o.db)
	if err != nil {
		return nil, nil, err
	}
	stops = append(stops, func() { closeDB(db) })
	s = &service{db: db, guarded: o.guarded, unguarded: o.unguarded}
	if !o.unguarded {
		locker, closeClients, err := openLocks(ctx, o, opts...)
		stops = append(stops, closeClients)
		if err != nil {
			return nil, nil, err
		}
		stops = append(stops, func() { _ = locker.Close() })
		records, closeRecords, err := openRecords(ctx, o, locker, opts...)
		stops = append(stops, closeRecords)
		if err != nil {
			return nil, nil, err
		}
		s.records = records
		if o.guarded {
			err = db.Use(gormlock.New(locker))
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return s, all, nil
}

// listen serves on a free loopback port.
func listen(h http.Handler) (addr string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("cannot listen on loopback: %w", err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), func() { shutDown(server) }, nil
}

// shutDown waits for what is under way, but not forever. A handler whose client hung up still runs
// after the server's Shutdown.
func shutDown(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = server.Shutdown(ctx)
	_ = idempotency.Shutdown(ctx)
}
