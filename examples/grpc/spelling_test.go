package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// A driver who writes the number of an order in another way must not get another lock on the same
// order.
func TestGrab_SpellingsOfAnOrder(t *testing.T) {
	core.SetDefault(testutil.Locker(t))
	t.Cleanup(func() { core.SetDefault(nil) })
	const n = 30
	b := &book{taken: make(map[string]int)}
	s := httptest.NewServer(httpServer(b, false))
	defer s.Close()
	for id := 1; id <= n; id++ {
		b.add("ann", "tea")
		var all sync.WaitGroup
		for i, spelled := range []string{"%d", "0%d", "00%d", "%%2B%d"} {
			all.Go(func() {
				r, _ := http.NewRequest("POST", fmt.Sprintf("%s/orders/"+spelled+"/grab", s.URL, id), nil)
				r.Header.Set("Authorization", fmt.Sprint("Bearer driver ", i))
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
	given := 0
	for _, times := range b.taken {
		given += times
	}
	if given != n {
		t.Errorf("%d orders were given away %d times", n, given)
	}
}
