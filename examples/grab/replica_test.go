package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/testutil"
)

// A replica that is behind shows an order as free that the last holder of the lock took.
func TestGrab_ReplicaIsBehind(t *testing.T) {
	db, closeDB, err := openDB(1)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	behind, closeBehind, err := openDB(1)
	if err != nil {
		t.Fatal(err)
	}
	defer closeBehind()
	replica, err := behind.DB()
	if err != nil {
		t.Fatal(err)
	}
	replicas := dbresolver.Config{Replicas: []gorm.Dialector{&sqlite.Dialector{Conn: replica}}}
	if err := db.Use(dbresolver.Register(replicas)); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer((&service{db: db, locker: testutil.Locker(t)}).routes())
	defer s.Close()
	for _, courier := range []string{"ann", "ben"} { // one after the other, each under the lock
		r, _ := http.NewRequest("POST", s.URL+"/orders/1/grab", nil)
		r.Header.Set("X-Courier", courier)
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if b, err := audit(db.Clauses(dbresolver.Write)); err != nil || b.once != 1 {
		t.Errorf("%+v, %v: want one order with one courier", b, err)
	}
}
