package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/idempotency"
	"gorm.io/gorm"
)

// service sells units of one SKU over HTTP.
type service struct {
	db        *gorm.DB
	unguarded bool
}

// routes are the service as a team would write it: authentication, then idempotency, then the
// handler.
func (s *service) routes() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(authenticate)
	if !s.unguarded {
		r.Use(ginlock.ByHeader("Idempotency-Key"))
	}
	r.POST("/orders", s.buy)
	return r
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

// buy is the naive read, check, write that every tutorial has.
func (s *service) buy(c *gin.Context) {
	order := Order{SKU: sku, Buyer: c.GetString(gin.AuthUserKey)}
	err := s.sale(c.Request.Context(), func(tx *gorm.DB) error {
		var stock Stock
		if err := tx.First(&stock, "sku = ?", sku).Error; err != nil {
			return err
		}
		if stock.Left < 1 {
			return errSoldOut
		}
		if err := tx.Model(&stock).Update("left", stock.Left-1).Error; err != nil {
			return err
		}
		return tx.Create(&order).Error
	})
	switch {
	case errors.Is(err, errSoldOut):
		c.JSON(http.StatusGone, gin.H{"error": "sold out"})
	case errors.Is(err, core.ErrTaken), errors.Is(err, core.ErrUnavailable):
		c.Header("Retry-After", "1") // nothing was done, so the key is free and the buyer may try again
		c.JSON(http.StatusServiceUnavailable, gin.H{"error": err.Error()})
	case errors.Is(err, gormlock.ErrCommitUnknown):
		// The order may be there. A 500 would be recorded as the answer, and 504 is not.
		c.JSON(http.StatusGatewayTimeout, gin.H{"error": err.Error()})
	case err != nil:
		c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
	default:
		c.JSON(http.StatusCreated, gin.H{"order": order.ID})
	}
}

// sale runs fn on the stock: alone, in a transaction, under the kit's line; or as it is.
func (s *service) sale(ctx context.Context, fn func(tx *gorm.DB) error) error {
	if s.unguarded {
		return fn(s.db.WithContext(ctx))
	}
	return s.db.WithContext(ctx).Scopes(gormlock.Guard("stock:42")).Transaction(fn)
}

// start opens Redis and the database and serves on a free loopback port. stop waits for what is
// under way.
func start(ctx context.Context, o options) (addr string, stop func(), err error) {
	s, closeAll, err := open(ctx, o)
	if err != nil {
		return "", nil, err
	}
	addr, shutdown, err := listen(s.routes())
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
		core.SetDefault(records)
		if err := db.Use(gormlock.New(locker)); err != nil {
			return nil, nil, err
		}
	}
	return &service{db: db, unguarded: o.unguarded}, all, nil
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

// shutDown waits for what is under way, but not for ever. A handler whose client hung up still runs
// after the server's Shutdown.
func shutDown(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = server.Shutdown(ctx)
	_ = idempotency.Shutdown(ctx)
}
