package main

import (
	"encoding/json"
	"errors"
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
	"github.com/onelane/onelane/idempotency"
)

// service takes payments.
type service struct {
	db       *gorm.DB
	locker   *core.Locker
	provider providerClient
	flaky    bool // loses one answer in four
	crash    bool // dies after the first charge, before it answers

	came, lost atomic.Int64
}

// shortTTL is the lease of a key here. Only when it has ended does a retry learn that a service has
// died. With the default of 10 s this show would take long.
const shortTTL = 1500 * time.Millisecond

func newService(redisAddr, dbFile, provider string, opts ...core.Option) (*service, func(), error) {
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
	return &service{db: db, locker: locker, provider: providerClient{provider}}, func() {
		_ = locker.Close()
		closeDB(db)
		_ = client.Close()
	}, nil
}

// routes is the service as a team would write it: authentication, then idempotency, then the
// handlers.
func (s *service) routes() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(s.loseAnswers, authenticate)
	once := func(opts ...idempotency.HTTPOption) gin.HandlerFunc {
		opts = append(opts, idempotency.WithLocker(s.locker), idempotency.Require(), idempotency.Wait(5*time.Second))
		return ginlock.ByHeader("Idempotency-Key", opts...)
	}
	r.POST("/payments", once(), s.pay)
	r.POST("/payments/recovered", once(idempotency.Recover(s.recoverPayment)), s.pay)
	r.POST("/payments/once", once(idempotency.RunAgain()), s.payOnce)
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

// pay charges the customer at the provider, under a key that is the same in every run of the
// request.
func (s *service) pay(c *gin.Context) {
	var p payment
	if err := c.ShouldBindJSON(&p); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	ctx := c.Request.Context()
	key, err := idempotency.DeriveKey(ctx, "charge")
	if err != nil {
		ginlock.Fail(c, err)
		return
	}
	charge, err := s.provider.charge(ctx, key, Charge{Customer: c.GetString(gin.AuthUserKey), Cents: p.Cents})
	if err != nil {
		// Nobody knows whether the provider took the money: 504 leaves the outcome unknown.
		c.JSON(http.StatusGatewayTimeout, gin.H{"error": err.Error()})
		return
	}
	s.mayDie()
	c.JSON(http.StatusCreated, charge)
}

// recoverPayment decides about a payment whose first run disappeared: the provider knows.
func (s *service) recoverPayment(w http.ResponseWriter, r *http.Request, _ idempotency.Run) idempotency.Recovery {
	key, err := idempotency.DeriveKey(r.Context(), "charge")
	if err != nil {
		return idempotency.StillUnknown
	}
	charge, err := s.provider.find(r.Context(), key)
	switch {
	case errors.Is(err, errNoCharge):
		return idempotency.RunHandler
	case err != nil:
		return idempotency.StillUnknown
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(charge) // an error means that the client is gone
	return idempotency.Answered
}

// payOnce charges the customer's account in our database, in a transaction that also keeps the
// result under the key of the request. All effects are in that transaction, so the handler may run
// again.
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
		ginlock.Fail(c, err)
		return
	}
	s.mayDie()
	c.JSON(http.StatusCreated, charge)
}

// mayDie is the worst moment: the money is taken, and nobody knows.
func (s *service) mayDie() {
	if s.crash {
		os.Exit(exitCrashed)
	}
}

var seed = maphash.MakeSeed()

// loseAnswers stands for the network: the connection ends before the answer arrives.
func (s *service) loseAnswers(c *gin.Context) {
	c.Next()
	if n := s.came.Add(1); s.flaky && maphash.String(seed, fmt.Sprint(n))%4 == 0 {
		s.lost.Add(1)
		panic(http.ErrAbortHandler)
	}
}
