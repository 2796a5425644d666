package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onelane/onelane/testutil"
)

// Several masters keep locks only: the recorded answers are on a separate Redis.
func TestRecords_BesideMasters(t *testing.T) {
	nodes, records := testutil.Cluster(t, 3), testutil.Redis(t)
	var masters []string
	for _, n := range nodes {
		masters = append(masters, n.Addr())
	}
	s, stop, err := open(t.Context(), options{
		redis: strings.Join(masters, ","), records: records.Addr(), guarded: true, newQuorum: true, nodeTimeout: patience,
		db: "sqlite:" + t.TempDir() + "/sale.db",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if err := prepare(s.db, 5); err != nil {
		t.Fatal(err)
	}
	routes := s.routes()
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/orders", nil)
		r.Header.Set("Authorization", "Bearer ann")
		r.Header.Set("Idempotency-Key", `"one"`)
		w := httptest.NewRecorder()
		if routes.ServeHTTP(w, r); w.Code != http.StatusCreated {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	}
	keys := func(n *testutil.Node) string {
		all, err := n.Client().Keys(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, " ")
	}
	if got := keys(records); !strings.Contains(got, "claim:") || strings.Contains(got, "stock:") {
		t.Errorf("the Redis of the records has the keys %q", got)
	}
	if got := keys(nodes[0]); strings.Contains(got, "claim:") || !strings.Contains(got, "stock:") {
		t.Errorf("a master has the keys %q", got)
	}
}
