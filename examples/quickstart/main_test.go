package main

import (
	"bytes"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
)

func TestQuickstart(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out); err != nil {
		t.Fatal(err)
	}
	const want = `payment: 201, replayed: false
payment: 201, replayed: true
payment: 201, replayed: true
order 9 has 1 taker
order 1 of tea, replayed: false
order 1 of tea, replayed: true
order 1 of tea, replayed: true
5 of 5 units sold, 5 orders
the report was written by one process
`
	if out.String() != want {
		t.Errorf("it says\n%swant\n%s", out.String(), want)
	}
}

// The three lines compile, and can be wired.
func TestContract(t *testing.T) {
	db, err := gorm.Open(sqlite.Open(t.TempDir()+"/shop.db"), &gorm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	contract(gin.New(), db)
	if pool, err := db.DB(); err == nil {
		_ = pool.Close()
	}
}
