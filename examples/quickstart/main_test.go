package main

import (
	"bytes"
	"fmt"
	"regexp"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
)

// late matches the output of a run that got no answer in time, and twice that of a run in which
// something happened twice.
var (
	late  = regexp.MustCompile(`payment: 503|and 0 couriers|Unavailable`)
	twice = regexp.MustCompile(`([2-9]|\d\d+) (payments|couriers?\b)|order [2-9] of|books are wrong`)
)

func TestQuickstart(t *testing.T) {
	const want = `payment: 201, replayed: false
payment: 201, replayed: true
payment: 201, replayed: true
order 9 has 1 courier
order 1 of tea, replayed: false
order 1 of tea, replayed: true
order 1 of tea, replayed: true
5 of 5 units sold, 5 orders
the report was written by one process
`
	for try := 1; ; try++ { // a machine that stands still may give no answer in time
		var out bytes.Buffer
		err := run(&out)
		said := fmt.Sprint(out.String(), err)
		if err == nil && out.String() == want {
			return
		}
		if try == 5 || twice.MatchString(said) || !late.MatchString(said) {
			t.Fatalf("it says\n%s, %v; want\n%s", out.String(), err, want)
		}
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
