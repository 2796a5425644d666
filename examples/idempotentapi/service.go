package main

import (
	"fmt"
	"hash/maphash"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/gormlock"
)

// Charge is money taken from a customer.
type Charge struct {
	ID       int    `gorm:"primaryKey" json:"payment"`
	Customer string `gorm:"index" json:"customer"`
	Cents    int    `json:"cents"`
}

// service takes payments.
type service struct {
	db     *gorm.DB
	locker *core.Locker
	flaky  bool // loses one answer in four
	crash  bool // dies after the first charge, before it answers

	came, lost atomic.Int64
}

// shortTTL is how long a service that died blocks a key in this show. The default, 10 s, would make it a long one.
const shortTTL = 1500 * time.Millisecond

func newService(redisAddr, dbFile string, opts ...core.Option) (*service, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: redisAddr})
	locker, err := core.New(redisbackend.New(client), opts...)
	if err != nil {
		return nil, nil, err
	}
	db, err := openDB(dbFile)
	if err == nil {
		err = db.Use(gormlock.New(locker))
	}
	if err != nil {
		return nil, nil, err
	}
	return &service{db: db, locker: locker}, func() {
		_ = locker.Close()
		closeDB(db)
		_ = client.Close()
	}, nil
}

// routes are the service as a team would write it: authentication, then idempotency, then the handlers.
func (s *service) routes() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(s.loseAnswers, authenticate, ginlock.ByHeader("Idempotency-Key",
		ginlock.WithLocker(s.locker), ginlock.Require(), ginlock.Wait(5*time.Second)))
	r.POST("/payments", s.pay)
	r.POST("/payments/once", s.payOnce)
	return r
}

// authenticate stands for a real login: the bearer token is the customer.
func authenticate(c *gin.Context) {
	customer, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if !ok || customer == "" {
		c.AbortWithStatus(http.StatusUnauthorized)
		return
	}
	c.Set(gin.AuthUserKey, customer)
}

type payment struct {
	Cents int `json:"cents" binding:"required,min=1"`
}

// pay charges the customer. Nothing but the record in Redis says that it was done.
func (s *service) pay(c *gin.Context) {
	var p payment
	if err := c.ShouldBindJSON(&p); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	charge := Charge{Customer: c.GetString(gin.AuthUserKey), Cents: p.Cents}
	if err := s.db.WithContext(c.Request.Context()).Create(&charge).Error; err != nil {
		c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
		return
	}
	s.mayDie()
	c.JSON(http.StatusCreated, charge)
}

// payOnce charges the customer in a transaction that also keeps the result, under the key of the request's claim.
func (s *service) payOnce(c *gin.Context) {
	var p payment
	if err := c.ShouldBindJSON(&p); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	ctx := c.Request.Context()
	charge, err := gormlock.Once(ctx, s.db, gormlock.ClaimKey(ctx, "payment"), func(tx *gorm.DB) (Charge, error) {
		charge := Charge{Customer: c.GetString(gin.AuthUserKey), Cents: p.Cents}
		return charge, tx.Create(&charge).Error
	})
	if err != nil {
		c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
		return
	}
	s.mayDie()
	c.JSON(http.StatusCreated, charge)
}

// mayDie is the worst moment: the money is taken, and nobody has been told.
func (s *service) mayDie() {
	if s.crash {
		os.Exit(exitCrashed)
	}
}

var seed = maphash.MakeSeed()

// loseAnswers stands for the network: the connection ends before the answer is through.
func (s *service) loseAnswers(c *gin.Context) {
	c.Next()
	if n := s.came.Add(1); s.flaky && maphash.String(seed, fmt.Sprint(n))%4 == 0 {
		s.lost.Add(1)
		panic(http.ErrAbortHandler)
	}
}
