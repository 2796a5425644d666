package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A shop registers the plugin when it opens its database: here with fences behind all guards, and a table that nobody
// writes without one.
func ExampleNew() {
	db, end := memoryDB(&Stock{})
	defer end()
	locker, err := core.New(backendtest.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	err = db.Use(gormlock.New(locker,
		gormlock.Fenced(),          // a holder that lost its lock without noticing commits nothing
		gormlock.Protect(&Stock{}), // a write without a guard fails
	))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(db.Create(&Stock{SKU: 42, Left: 3}).Error, gormlock.ErrUnguarded))
	fmt.Println(db.Scopes(gormlock.Guard("stock:42")).Create(&Stock{SKU: 42, Left: 3}).Error)
	// Output:
	// true
	// <nil>
}

// All of the function is under the lock, also what comes before its first statement.
func ExampleTransaction() {
	db, end := open(&Stock{}, &Item{})
	defer end()
	if err := db.Create(&Stock{ID: 1, SKU: 42, Left: 1}).Error; err != nil {
		log.Fatal(err)
	}
	buy := func(ctx context.Context, buyer string) error {
		return gormlock.Transaction(db.WithContext(ctx), "stock:42", func(tx *gorm.DB) error {
			var row Stock
			if err := tx.First(&row, "sku = ?", 42).Error; err != nil {
				return err
			}
			if row.Left == 0 {
				return errors.New("sold out")
			}
			if err := tx.Model(&row).Update("left", row.Left-1).Error; err != nil {
				return err
			}
			token, err := gormlock.Token(tx) // for what else is written for this order, outside of the database
			if err != nil {
				return err
			}
			fmt.Println(buyer, "buys:", token > 0)
			return tx.Create(&Item{StockID: row.ID, Name: buyer}).Error
		}, gormlock.WithWait(2*time.Second)) // 5 s by default
	}
	fmt.Println(buy(context.Background(), "ann"))
	fmt.Println(buy(context.Background(), "ben"))
	// Output:
	// ann buys: true
	// <nil>
	// sold out
}

// The guard in the context, for a transaction by hand and for the generics API. Several keys are taken together.
func ExampleWithGuard() {
	db, end := open(&Stock{})
	defer end()
	ctx := gormlock.WithGuard(context.Background(), "stock:42", "stock:43")
	tx := db.WithContext(ctx).Begin()
	if tx.Error != nil { // where the locks were not had
		log.Fatal(tx.Error)
	}
	defer tx.Rollback()
	if err := gorm.G[Stock](tx).Create(ctx, &Stock{SKU: 42}); err != nil {
		log.Fatal(err)
	}
	if err := gorm.G[Stock](tx).Create(ctx, &Stock{SKU: 43}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(tx.Commit().Error)
	// Output: <nil>
}

// One statement reads, decides and writes. It needs no lock, and takes nothing that is not there.
func ExampleDecrement() {
	db, end := open(&Stock{})
	defer end()
	if err := db.Create(&Stock{SKU: 42, Left: 3}).Error; err != nil {
		log.Fatal(err)
	}
	fmt.Println(stock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42), "left", 2))
	_, err := stock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42), "left", 2)
	fmt.Println(errors.Is(err, stock.ErrInsufficient))
	// Output:
	// 1 <nil>
	// true
}

// A cart: everything or nothing.
func ExampleDecrementAll() {
	db, end := open(&Stock{})
	defer end()
	if err := db.Create(&[]Stock{{SKU: 42, Left: 3}, {SKU: 43, Left: 1}}).Error; err != nil {
		log.Fatal(err)
	}
	buy := func(cart map[int]int64) {
		left, err := stock.DecrementAll(db.Model(&Stock{}), "sku", "left", cart)
		var short *stock.InsufficientError
		if errors.As(err, &short) {
			fmt.Println(short.Row, "has", short.Left, "and not", short.N)
			return
		}
		fmt.Println(left, err)
	}
	buy(map[int]int64{42: 1, 43: 2})
	buy(map[int]int64{42: 1, 43: 1})
	// Output:
	// `stocks`.`sku` = 43 has 1 and not 2
	// map[42:2 43:0] <nil>
}

// For libraries that want a *sql.Tx: it is in the guarded transaction.
func ExampleSQLTx() {
	db, end := open(&Stock{})
	defer end()
	err := gormlock.Transaction(db, "stock:42", func(tx *gorm.DB) error {
		sqlTx, err := gormlock.SQLTx(tx)
		if err != nil {
			return err
		}
		var stocks int
		if err := sqlTx.QueryRow("SELECT count(*) FROM stocks").Scan(&stocks); err != nil {
			return err
		}
		fmt.Println(stocks, "stocks")
		return nil
	})
	fmt.Println(err)
	// Output:
	// 0 stocks
	// <nil>
}

// A handler behind ginlock, grpclock or a middleware of package idempotency has a claim in its context.
// The payment is made once for it, even if the process dies after COMMIT and before the answer was
// recorded. All effects are in that transaction, so the handler may run again.
func ExampleClaimKey() {
	type Payment struct {
		ID    uint
		Cents int
	}
	locker, err := core.New(backendtest.Memory())
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	db, end := memoryDB(&Payment{})
	defer end()
	if err := db.Use(gormlock.New(locker)); err != nil {
		log.Fatal(err)
	}
	pay := func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		payment, err := gormlock.Once(ctx, db, gormlock.ClaimKey(ctx, "pay"), func(tx *gorm.DB) (Payment, error) {
			p := Payment{Cents: 700}
			return p, tx.Create(&p).Error
		})
		fmt.Println(payment.ID, payment.Cents, err)
		w.WriteHeader(http.StatusInternalServerError) // with RunAgain the retry runs
	}
	payer := func(*http.Request) string { return "alice" }
	once := idempotency.ByHeader("Idempotency-Key", idempotency.Principal(payer), idempotency.WithLocker(locker),
		idempotency.RunAgain())
	handler := once(http.HandlerFunc(pay))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "k1")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// 1 700 <nil>
	// 1 700 <nil>
}

// The token of a later sale is larger. A warehouse that remembers the largest token it has seen can
// refuse an order of a holder that lost its lock without noticing.
func ExampleToken() {
	db, end := open(&Item{})
	defer end()
	var tokens []uint64
	for range 2 {
		err := gormlock.Transaction(db, "stock:42", func(tx *gorm.DB) error {
			token, err := gormlock.Token(tx)
			tokens = append(tokens, token)
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(tokens[0] < tokens[1])
	_, err := gormlock.Token(db) // outside of a guarded transaction
	fmt.Println(err != nil)
	// Output:
	// true
	// true
}
