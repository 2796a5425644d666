package sqlbackend_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/sqlrelay"
)

// behindProxy runs fn on each database with replicas. The proxy sends plain SELECTs to a replica that
// nobody replicates to.
func behindProxy(t *testing.T, fn func(t *testing.T, split backend, primary, replica *database)) {
	t.Helper()
	databases(t, func(t *testing.T, db *database) {
		if db.name == "sqlite" { // has no replicas
			return
		}
		db.migrate(t)
		replica := db.beside(t, "replica")
		replica.migrate(t)
		proxy := &sqlrelay.Relay{Primary: db.DB, Replica: replica.DB}
		fn(t, open(t, at(proxy.Open(t))), db, replica)
	})
}

// The replica knows nothing, and later it knows only what was long ago.
func TestReplica_ReadWriteSplit(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *testing.T, b backend, db, replica *database) {
		g, err := b.Acquire(t.Context(), request("k", "first/1", time.Minute))
		ok(t, "Acquire", err)
		_, err = b.Acquire(t.Context(), request("k", "second/1", time.Minute))
		want(t, "Acquire of a held key", err, core.ErrTaken)
		g, err = b.Extend(t.Context(), g, 2*time.Minute)
		ok(t, "Extend", err)

		old := open(t, at(replica.DB))
		_, err = old.Acquire(t.Context(), request("k", "first/1", time.Minute))
		ok(t, "Acquire on the replica", err)
		ok(t, "Release", b.release(t.Context(), g))
		second, err := open(t, at(db.DB)).Acquire(t.Context(), request("k", "second/1", time.Minute))
		ok(t, "Acquire on the primary", err)
		_, err = b.Extend(t.Context(), g, time.Minute)
		want(t, "Extend of a lost lease", err, core.ErrLost)
		want(t, "Release of a lost lease", b.release(t.Context(), g), core.ErrLost)
		want(t, "Seal of a lost lease", b.Seal(t.Context(), g, nil, time.Minute), core.ErrLost)
		ok(t, "Seal", b.Seal(t.Context(), second, []byte("v"), time.Minute))
		ok(t, "Seal again", b.Seal(t.Context(), second, []byte("v"), time.Minute))
		ok(t, "Release of a sealed key", b.release(t.Context(), second))
	})
}

// The replica still has the lock and the seal of long ago.
func TestReplica_Stale(t *testing.T) {
	t.Parallel()
	behindProxy(t, func(t *testing.T, b backend, _, replica *database) {
		stale := open(t, at(replica.DB))
		_, err := stale.Acquire(t.Context(), request("held", "other/1", time.Hour))
		ok(t, "Acquire on the replica", err)
		g, err := stale.Acquire(t.Context(), request("sealed", "other/1", time.Hour))
		ok(t, "Acquire on the replica", err)
		ok(t, "Seal on the replica", stale.Seal(t.Context(), g, []byte("old"), time.Hour))
		for _, key := range []string{"held", "sealed"} {
			g, err := b.Acquire(t.Context(), request(key, "me/1", time.Minute))
			ok(t, "Acquire", err)
			st, err := b.Inspect(t.Context(), key)
			if ok(t, "Inspect", err); st.Owner != "me/1" {
				t.Errorf("%s: the owner is %q", key, st.Owner)
			}
			ok(t, "Release", b.release(t.Context(), g))
		}
	})
}
