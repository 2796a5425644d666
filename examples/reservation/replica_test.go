package main

import (
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"
)

// A replica that is behind must not decide: whoever calls confirm pays the buyer back after errExpired,
// and the units are sold.
func TestSale_ReplicaIsBehind(t *testing.T) {
	t.Parallel()
	db, closeDB, err := openDB()
	ok(t, "openDB", err)
	t.Cleanup(closeDB)
	behind, closeBehind, err := openDB()
	ok(t, "openDB", err)
	t.Cleanup(closeBehind)
	replica, err := behind.DB()
	ok(t, "DB", err)

	s, err := newShop(db, time.Hour, time.Now)
	ok(t, "newShop", err)
	ok(t, "Create", db.Create(&Stock{SKU: 42, Remaining: 2}).Error)
	for _, id := range []string{"paid", "canceled"} {
		ok(t, "reserve", s.reserve(t.Context(), id, 42, 1))
		// The replica has got as far as this.
		until := time.Now().Add(time.Hour).UnixMilli()
		ok(t, "Create", behind.Create(&Reservation{id, 42, 1, reserved, until}).Error)
	}
	ok(t, "Use", db.Use(dbresolver.Register(dbresolver.Config{
		Replicas: []gorm.Dialector{&sqlite.Dialector{Conn: replica}},
	})))

	ok(t, "confirm", s.confirm(t.Context(), "paid"))
	if err := s.confirm(t.Context(), "paid"); err != nil { // the payment provider calls twice
		t.Errorf("confirm again: %v", err)
	}
	if err := s.cancel(t.Context(), "canceled"); err != nil {
		t.Errorf("cancel: %v", err)
	}
}
