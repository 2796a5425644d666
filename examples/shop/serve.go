package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/glebarez/sqlite"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
)

// config is what an instance needs to know.
type config struct {
	name, addr, redis, db, provider string
	hold, lease, timeout, sweep     time.Duration
}

// graceful is how long an instance has to stop: longer than its longest handler needs.
const graceful = 20 * time.Second

// serve is an instance of the shop. It serves until ctx ends, and then stops in the order that loses
// nothing. It calls ready with its address.
func serve(ctx context.Context, c config, ready func(addr string)) error {
	meters, metrics, err := newMetrics()
	if err != nil {
		return err
	}
	otel.SetMeterProvider(meters) // the kit reports there by default
	db, err := openDB(c.db)
	if err != nil {
		return err
	}
	defer closeDB(db)
	client := redis.NewClient(&redis.Options{Addr: c.redis, ContextTimeoutEnabled: true})
	defer client.Close()
	locker, err := core.New(redisbackend.New(client), core.WithInstance(c.name), core.WithTTL(c.lease))
	if err != nil {
		return err
	}
	defer locker.Close()
	s, err := newShop(db, locker, newPayments(c.provider, c.name, c.timeout), c.hold)
	if err != nil {
		return err
	}
	gin.SetMode(gin.ReleaseMode)
	orders, err := s.routes()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/orders", orders)
	mux.Handle("GET /metrics", metrics)
	// Alive is not ready: a restart does not repair Redis or the database.
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", s.ready)
	if err := errors.Join(locker.Ping(ctx), pingDB(ctx, db)); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.addr)
	if err != nil {
		return fmt.Errorf("-serve %s: %w", c.addr, err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	running, fail := context.WithCancelCause(ctx)
	sweeping, endSweep := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { fail(s.sweepEvery(sweeping, c.sweep)) })
	background.Go(func() { fail(server.Serve(listener)) })
	ready(listener.Addr().String())
	<-running.Done()
	if ctx.Err() == nil {
		err = context.Cause(running)
	}

	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceful)
	defer cancel()
	err = errors.Join(err, server.Shutdown(stopping))      // 1. no new requests; wait for those under way
	err = errors.Join(err, idempotency.Shutdown(stopping)) // 2. handlers whose clients hung up, and records
	endSweep()                                             // 3. the sweep
	background.Wait()
	return errors.Join(err, meters.Shutdown(stopping)) // 4. the Locker, Redis and the database, deferred
}

// ready answers 200 if the instance should get requests.
func (s *shop) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	if err := errors.Join(s.locker.Ping(ctx), pingDB(ctx, s.db)); err != nil {
		slog.WarnContext(ctx, "not ready", "error", err) // it has addresses, which callers need not know
		http.Error(w, "not ready", http.StatusServiceUnavailable)
	}
}

// newMetrics returns the provider of the kit's instruments, and the page for Prometheus.
func newMetrics() (*metric.MeterProvider, http.Handler, error) {
	registry := prom.NewRegistry()
	exporter, err := prometheus.New(prometheus.WithRegisterer(registry))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make the metrics: %w", err)
	}
	return metric.NewMeterProvider(metric.WithReader(exporter)), promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), nil
}

// openDB opens the database of -db.
func openDB(spec string) (*gorm.DB, error) {
	kind, dsn, _ := strings.Cut(spec, ":")
	dialectors := map[string]func() gorm.Dialector{
		"mysql":    func() gorm.Dialector { return mysql.Open(dsn) },
		"postgres": func() gorm.Dialector { return postgres.Open(dsn) },
		"sqlite": func() gorm.Dialector {
			return sqlite.Open(dsn + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate")
		},
	}
	open := dialectors[kind]
	if open == nil || dsn == "" {
		return nil, fmt.Errorf("-db %q: it must be sqlite:FILE, mysql:DSN or postgres:DSN", spec)
	}
	db, err := gorm.Open(open(), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, fmt.Errorf("the %s database does not answer: %w", kind, err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(8)
	pool.SetMaxIdleConns(8)
	return db, nil
}

func closeDB(db *gorm.DB) {
	if pool, err := db.DB(); err == nil {
		_ = pool.Close()
	}
}

func pingDB(ctx context.Context, db *gorm.DB) error {
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return pool.PingContext(ctx)
}
