package main

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/examples/grpc/orderpb"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
)

var (
	errNoOrder = errors.New("there is no such order")
	errTaken   = errors.New("somebody else has taken it")
)

// book holds the orders. Each of its methods is safe for concurrent use. Two of them in a row are
// not one step.
type book struct {
	mu     sync.Mutex
	orders []*orderpb.Order
	taken  map[string]int // how often each order was given away
}

func (b *book) add(customer, item string) *orderpb.Order {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := &orderpb.Order{Id: strconv.Itoa(len(b.orders) + 1), Item: item, Customer: customer}
	b.orders = append(b.orders, o)
	return o
}

func (b *book) get(id string) (*orderpb.Order, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, err := strconv.Atoi(id)
	// 01 is no name of order 1: the lock's key is the text, so another spelling has another lock.
	if err != nil || i < 1 || i > len(b.orders) || strconv.Itoa(i) != id {
		return nil, errNoOrder
	}
	o := b.orders[i-1]
	return &orderpb.Order{Id: o.Id, Item: o.Item, Customer: o.Customer, Courier: o.Courier}, nil
}

func (b *book) give(id, courier string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, _ := strconv.Atoi(id)
	b.orders[i-1].Courier = courier
	b.taken[id]++
}

// create and grab are the service, over either transport.
func (b *book) create(customer, item string) *orderpb.Order {
	time.Sleep(time.Millisecond) // a payment, say
	return b.add(customer, item)
}

// grab is the naive read, check, write that every tutorial has.
func (b *book) grab(courier, id string) (*orderpb.Order, error) {
	o, err := b.get(id)
	switch {
	case err != nil:
		return nil, err
	case o.Courier != "":
		return nil, errTaken
	}
	time.Sleep(time.Millisecond)
	b.give(id, courier)
	return b.get(id)
}

// grpcServer is the service on gRPC: a login, and what the .proto file says of each method. Check
// finds a mistake in that file before the first call finds it.
func grpcServer(b *book, unguarded bool) (*grpc.Server, error) {
	chain := []grpc.UnaryServerInterceptor{login}
	if !unguarded {
		chain = append(chain, grpclock.ByProto(grpclock.Principal(user)))
	}
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(chain...))
	orderpb.RegisterOrdersServer(s, &service{book: b})
	return s, grpclock.Check(s)
}

type userKey struct{}

func user(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}

// login stands for a real one: the bearer token is the user.
func login(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	for _, v := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if name, ok := strings.CutPrefix(v, "Bearer "); ok && name != "" {
			return handler(context.WithValue(ctx, userKey{}, name), req)
		}
	}
	return nil, status.Error(codes.Unauthenticated, "who are you?")
}

type service struct {
	orderpb.UnimplementedOrdersServer
	*book
}

func (s *service) Create(ctx context.Context, r *orderpb.CreateRequest) (*orderpb.Order, error) {
	return s.create(user(ctx), r.Item), nil
}

func (s *service) Grab(ctx context.Context, r *orderpb.GrabRequest) (*orderpb.Order, error) {
	o, err := s.grab(user(ctx), r.OrderId)
	return o, statusOf(err)
}

func (s *service) Get(_ context.Context, r *orderpb.GetRequest) (*orderpb.Order, error) {
	o, err := s.get(r.OrderId)
	return o, statusOf(err)
}

func statusOf(err error) error {
	switch err {
	case nil:
		return nil
	case errNoOrder:
		return status.Error(codes.NotFound, err.Error())
	case errTaken:
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return grpclock.Error(err)
}

// httpServer is the same on Gin.
func httpServer(b *book, unguarded bool) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(func(c *gin.Context) {
		name, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
		if !ok || name == "" {
			c.AbortWithStatusJSON(http.StatusUnauthorized, gin.H{"error": "who are you?"})
			return
		}
		c.Set(gin.AuthUserKey, name)
	})
	create, grab := gin.HandlersChain{}, gin.HandlersChain{}
	if !unguarded {
		create = append(create, ginlock.ByHeader("Idempotency-Key", idempotency.Require()))
		grab = append(grab, ginlock.LockByKey("order:{param.id}", idempotency.Wait(10*time.Second)))
	}
	r.POST("/orders", append(create, func(c *gin.Context) {
		c.JSON(http.StatusCreated, b.create(c.GetString(gin.AuthUserKey), c.Query("item")))
	})...)
	r.POST("/orders/:id/grab", append(grab, func(c *gin.Context) {
		o, err := b.grab(c.GetString(gin.AuthUserKey), c.Param("id"))
		switch err {
		case nil:
			c.JSON(http.StatusOK, o)
		case errNoOrder:
			c.JSON(http.StatusNotFound, gin.H{"error": err.Error()})
		case errTaken:
			c.JSON(http.StatusConflict, gin.H{"error": err.Error()})
		default:
			ginlock.Fail(c, err)
		}
	})...)
	return r
}
