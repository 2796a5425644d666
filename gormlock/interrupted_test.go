package gormlock_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestInterrupted: KILL QUERY ends a ROLLBACK or COMMIT with an error, and the transaction stays open
// on its connection. The next BEGIN on that connection would commit it.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	ways := map[string]struct {
		run  func(db *gorm.DB, key string, fn func(tx *gorm.DB) error) error
		told error
	}{
		"ROLLBACK": {func(db *gorm.DB, key string, fn func(tx *gorm.DB) error) error {
			return gormlock.Transaction(db, key, func(tx *gorm.DB) error { return errors.Join(fn(tx), boom) })
		}, boom},
		"ROLLBACK after a panic": {func(db *gorm.DB, key string, fn func(tx *gorm.DB) error) (err error) {
			defer func() { err, _ = recover().(error) }()
			return gormlock.Transaction(db, key, func(tx *gorm.DB) error { _ = fn(tx); panic(boom) })
		}, boom},
		"ROLLBACK in a Connection": {func(db *gorm.DB, key string, fn func(tx *gorm.DB) error) error {
			return db.Connection(func(conn *gorm.DB) error {
				return gormlock.Transaction(conn, key, func(tx *gorm.DB) error { return errors.Join(fn(tx), boom) })
			})
		}, boom},
		"COMMIT": {func(db *gorm.DB, key string, fn func(tx *gorm.DB) error) error {
			return gormlock.Transaction(db, key, fn)
		}, gormlock.ErrCommitUnknown},
		"COMMIT of a block": {func(db *gorm.DB, key string, fn func(tx *gorm.DB) error) error {
			return db.Scopes(gormlock.Guard(key)).Transaction(fn)
		}, gormlock.ErrCommitUnknown},
	}
	each(t, func(t *testing.T, db *gorm.DB) {
		proxied, p := behindProxy(t, db)
		if p == nil {
			return
		}
		pool(t, proxied).SetMaxOpenConns(1)
		p.failure.Store(mysqlFailure(1317))
		if db.Name() == "postgres" {
			failure := postgresFailure("57014")
			failure[len(failure)-1] = 'T' // the transaction is open
			p.failure.Store(failure)
		}
		ok(t, "Use", proxied.Use(gormlock.New(locker(t, backendtest.Memory()))))
		put(t, db, 42, 10)
		n := int64(10)
		for name, way := range ways {
			err := way.run(proxied, name, func(tx *gorm.DB) error {
				ok(t, name, take(tx, 42))
				p.do.Store(interrupt)
				return nil
			})
			p.do.Store(pass)
			want(t, name, err, way.told)
			ok(t, name+": the next one", gormlock.Transaction(proxied, "next", func(tx *gorm.DB) error { return take(tx, 42) }))
			n--
			if got := left(t, db, 42); got != n {
				t.Errorf("%s: %d are left, want %d: what was undone is there", name, got, n)
				n = got
			}
		}
	})
}
