package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/onelane/onelane/testutil"
)

// A courier who writes the number of an order in another way wants the same order, and must not get another lock.
func TestGrab_SpellingsOfAnOrder(t *testing.T) {
	const n = 30
	db, closeDB, err := openDB(n)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	s := httptest.NewServer((&service{db: db, locker: testutil.Locker(t)}).routes())
	defer s.Close()
	var all sync.WaitGroup
	for id := 1; id <= n; id++ {
		for i, spelled := range []string{"%d", "0%d", "00%d", "%%2B%d"} {
			all.Go(func() {
				r, _ := http.NewRequest("POST", fmt.Sprintf("%s/orders/"+spelled+"/grab", s.URL, id), nil)
				r.Header.Set("X-Courier", fmt.Sprint("courier ", i))
				resp, err := s.Client().Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
			})
		}
		all.Wait()
	}
	b, err := audit(db)
	if err != nil || b.several > 0 || b.none > 0 {
		t.Errorf("%d orders went to several couriers, %d to none, %v", b.several, b.none, err)
	}
}

// A courier without a name must not get an order: it would look free.
func TestGrab_CourierWithoutName(t *testing.T) {
	db, closeDB, err := openDB(1)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	s := httptest.NewServer((&service{db: db, locker: testutil.Locker(t)}).routes())
	defer s.Close()
	for _, courier := range []string{"", "ben"} {
		r, _ := http.NewRequest("POST", s.URL+"/orders/1/grab", nil)
		r.Header.Set("X-Courier", courier)
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if b, err := audit(db); err != nil || b.once != 1 {
		t.Errorf("%+v, %v: want one order with one courier", b, err)
	}
}
