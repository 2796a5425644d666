package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
)

// Order is what couriers grab.
type Order struct {
	ID      int `gorm:"primaryKey"`
	Courier string
}

// Grab is one courier who got the order.
type Grab struct {
	ID      int `gorm:"primaryKey"`
	OrderID int `gorm:"index"`
	Courier string
	Token   uint64 // the fencing token: a later grab of the same order would have a larger one
}

type service struct {
	db        *gorm.DB
	locker    *core.Locker
	unguarded bool
}

func (s *service) routes() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	if s.unguarded {
		r.POST("/orders/:id/grab", s.grab)
	} else {
		r.POST("/orders/:id/grab", ginlock.LockBy(orderKey, idempotency.WithLocker(s.locker)), s.grab)
	}
	return r
}

// orderKey returns the key of an order. The database takes 07 for 7, so the lock must do so, too.
func orderKey(c *gin.Context) (string, error) {
	id, err := strconv.Atoi(c.Param("id"))
	return fmt.Sprint("order:", id), err
}

// grab is the naive read, check, write.
func (s *service) grab(c *gin.Context) {
	db, courier := s.db.WithContext(c.Request.Context()), c.GetHeader("X-Courier")
	if courier == "" { // an order without a courier is free
		c.JSON(http.StatusUnauthorized, gin.H{"code": "unknown_courier"})
		return
	}
	// FOR UPDATE reads from the primary. A replica may not have what the last holder wrote.
	primary := clause.Locking{Strength: clause.LockingStrengthUpdate}
	var order Order
	if err := db.Clauses(primary).First(&order, "id = ?", c.Param("id")).Error; err != nil {
		ginlock.Fail(c, err)
		return
	}
	if order.Courier != "" {
		c.JSON(http.StatusConflict, gin.H{"code": "taken"})
		return
	}
	time.Sleep(time.Millisecond) // look up a price, a route is planned
	token, err := s.token(c)
	if err != nil {
		ginlock.Fail(c, err)
		return
	}
	err = db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Model(&order).Update("courier", courier).Error; err != nil {
			return err
		}
		return tx.Create(&Grab{OrderID: order.ID, Courier: courier, Token: token}).Error
	})
	if err != nil {
		ginlock.Fail(c, err)
		return
	}
	c.JSON(http.StatusCreated, gin.H{"order": order.ID, "courier": courier})
}

// token returns the fencing token of the order's lock. Without the kit's line there is none.
func (s *service) token(c *gin.Context) (uint64, error) {
	if s.unguarded {
		return 0, nil
	}
	return idempotency.Token(c.Request.Context())
}

// openDB makes a SQLite file with so many orders.
func openDB(orders int) (*gorm.DB, func(), error) {
	dir, err := os.MkdirTemp("", "grab")
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a folder for SQLite: %w", err)
	}
	file := filepath.Join(dir, "grab.db")
	db, err := gorm.Open(sqlite.Open(file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate"), &gorm.Config{Logger: logger.Discard})
	remove := func() {
		if db != nil {
			if pool, err := db.DB(); err == nil {
				_ = pool.Close()
			}
		}
		_ = os.RemoveAll(dir)
	}
	if err == nil {
		err = db.AutoMigrate(&Order{}, &Grab{})
	}
	if err == nil {
		all := make([]Order, orders)
		for i := range all {
			all[i].ID = i + 1
		}
		err = db.CreateInBatches(all, 100).Error
	}
	if err != nil {
		remove()
		return nil, nil, fmt.Errorf("cannot make the database: %w", err)
	}
	return db, remove, nil
}

// books are how many orders went to how many couriers.
type books struct{ once, several, none int }

func audit(db *gorm.DB) (b books, err error) {
	var counts []int
	err = db.Raw("SELECT count(grabs.id) FROM orders LEFT JOIN grabs ON grabs.order_id = orders.id GROUP BY orders.id").Scan(&counts).Error
	for _, n := range counts {
		switch n {
		case 0:
			b.none++
		case 1:
			b.once++
		default:
			b.several++
		}
	}
	return b, err
}

func newClient(conns int) *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: conns}}
}

// grab asks for an order; code is why it was refused.
func grab(ctx context.Context, client *http.Client, url string, order, courier int) (status int, code string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/orders/%d/grab", url, order), nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("X-Courier", fmt.Sprint("courier ", courier))
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, "", err
	}
	var answer struct{ Code string }
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, "", fmt.Errorf("%d %q: %w", resp.StatusCode, body, err)
	}
	return resp.StatusCode, answer.Code, nil
}
