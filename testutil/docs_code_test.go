package testutil_test

import (
	"context"
	"database/sql"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-redsync/redsync/v4/redis"
	goredis "github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/idempotency"
)

// The functions below are code of README.md and docs/ that is in no example. It compiles here.

func docsNetHTTP(mux *http.ServeMux, userOf func(*http.Request) string, pay http.Handler) {
	once := idempotency.ByHeader("Idempotency-Key", idempotency.Principal(userOf)) // userOf returns who sent the request
	mux.Handle("POST /payments", once(pay))
}

func docsPlainLock(mux *http.ServeMux, grab http.Handler) {
	mux.Handle("POST /orders/{id}/grab", idempotency.LockByKey("order:{param.id}")(grab)) // one at a time per order
}

func docsShutdown(server *http.Server, locker *core.Locker, redisClient *goredis.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = server.Shutdown(ctx)      // 1. no new requests; wait for those under way
	_ = idempotency.Shutdown(ctx) // 2. handlers whose clients hung up, and answers still to be recorded
	_ = locker.Close()            // 3. locks, renewals, clean-ups
	_ = redisClient.Close()       // 4. the clients and databases that the Locker used
}

func docsReadiness(locker *core.Locker) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := locker.Ping(ctx); err != nil {
			slog.WarnContext(ctx, "not ready", "error", err) // it has addresses, which callers need not know
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	}
}

func docsQuorum(a, b, c *goredis.Client) (*core.Locker, error) {
	backend := redisbackend.New(a, b, c)
	return core.New(backend)
}

func docsSQL(ctx context.Context, db *sql.DB) (*core.Locker, error) {
	if err := sqlbackend.Migrate(ctx, db); err != nil { // when the service starts
		return nil, err
	}
	locker, err := core.New(sqlbackend.New(db, sqlbackend.WithTimeout(time.Second)))
	return locker, err
}

func docsRecordsBesideAQuorum(r *gin.Engine, a, b, c, one goredis.UniversalClient) error {
	stock, err := core.New(redisbackend.New(a, b, c))
	if err != nil {
		return err
	}
	records, err := core.New(redisbackend.New(one))
	if err != nil {
		return err
	}
	r.Use(ginlock.ByHeader("Idempotency-Key", idempotency.WithLocker(records)))
	r.POST("/orders/:id", ginlock.LockByKey("stock:{param.id}", idempotency.WithLocker(stock)))
	return nil
}

func docsReplicas(client *goredis.Client) (*core.Locker, error) {
	backend := redisbackend.New(client)
	backend.Replicas = 1
	backend.ReplicaTimeout = 200 * time.Millisecond
	return core.New(backend)
}

func docsRedsync(pool redis.Pool) (*core.Locker, error) {
	return core.New(redisbackend.Pools(pool), core.WithPrefix("")) // excludes redsync's users on the same names
}

func docsGuard(db *gorm.DB) error {
	type Stock struct{ SKU, Remaining int64 }
	return db.Scopes(gormlock.Guard("stock:42")).Transaction(func(tx *gorm.DB) error {
		_, err := stock.Decrement(tx.Model(&Stock{}).Where("sku = ?", 42), "remaining", 1)
		return err // ErrInsufficient if nothing is left
	})
}

func docsForUpdate(ctx context.Context, tx *gorm.DB) error {
	type Stock struct{ SKU, Remaining int64 }
	lock := func(s *gorm.Statement) { gormlock.ForUpdate()(s.DB) }
	stock, err := gorm.G[Stock](tx).Scopes(lock).Where("sku = ?", 42).Take(ctx)
	_ = stock
	return err
}

var _ = []any{docsForUpdate, docsNetHTTP, docsPlainLock, docsShutdown, docsReadiness, docsQuorum, docsSQL, docsRecordsBesideAQuorum, docsReplicas, docsRedsync, docsGuard}
