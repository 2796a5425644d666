package gormlock_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// lossyNetwork forwards to a server until it is lost. From then on it takes everything and answers
// nothing, and refuses new connections.
func lossyNetwork(t *testing.T, upstream string, lost *atomic.Bool) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	look := func(chunk []byte) ([]byte, bool) {
		if lost.Load() {
			return nil, true
		}
		return chunk, true
	}
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", upstream)
			if err != nil || lost.Load() {
				_ = client.Close()
				if err == nil {
					_ = server.Close()
				}
				continue
			}
			mu.Lock()
			conns = append(conns, client, server)
			mu.Unlock()
			closeBoth := func() { _, _ = client.Close(), server.Close() }
			all.Go(func() { defer closeBoth(); copyChunks(client, server, look) })
			all.Go(func() { defer closeBoth(); copyChunks(server, client, look) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return l.Addr().(*net.TCPAddr)
}

// TestRollback_WithoutAnswer: a server that does not answer ROLLBACK keeps neither the caller,
// whose context has ended, nor the key.
func TestRollback_WithoutAnswer(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "postgres" {
			return // the driver of MySQL interrupts no ROLLBACK, see readTimeout; SQLite has no server
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		put(t, db, 42, 10)
		cfg, err := pgx.ParseConfig(os.Getenv("ONELANE_POSTGRES_DSN"))
		ok(t, "ParseConfig", err)
		var lost atomic.Bool
		addr := lossyNetwork(t, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))), &lost)
		cfg.Database, cfg.Fallbacks = db.Migrator().CurrentDatabase(), nil
		cfg.Host, cfg.Port = addr.IP.String(), uint16(addr.Port)
		conns := stdlib.OpenDB(*cfg)
		t.Cleanup(func() { _ = conns.Close() })
		proxied, err := gorm.Open(postgres.New(postgres.Config{Conn: conns}), &gorm.Config{Logger: logger.Discard})
		ok(t, "Open", err)
		l := locker(t, backendtest.Memory(), core.WithTTL(time.Minute))
		ok(t, "Use", proxied.Use(gormlock.New(l)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			done <- gormlock.Transaction(proxied.WithContext(ctx), "k", func(tx *gorm.DB) error {
				err := tx.Take(&Stock{}, "sku = 42").Error
				lost.Store(true)
				cancel()
				return errors.Join(err, errors.New("the buyer has no money"))
			})
		}()
		select {
		case err := <-done:
			if err == nil {
				t.Error("it succeeds")
			}
		case <-time.After(check.Patience):
			t.Fatalf("the context ended long ago, and Transaction has not returned; the key is locked: %v", held(t, l, "k"))
		}
		if held(t, l, "k") {
			t.Error("the key is still locked")
		}
	})
}
