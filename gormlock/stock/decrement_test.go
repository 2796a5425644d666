package stock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock/stock"
)

// TestDecrement_CommitUnknown: a lost answer to COMMIT is no ordinary error, after which a caller
// would take again.
func TestDecrement_CommitUnknown(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		cut := errors.New("unexpected EOF")
		f := &faulty{commit: func(tx gorm.TxCommitter) error {
			ok(t, "Commit", tx.Commit())
			return cut
		}}
		fresh(t, db, 10)
		lost := through(db, f)
		_, err := stock.Decrement(lost.Model(&Stock{}).Where("sku = 42"), "remaining", 1)
		want(t, "Decrement", err, stock.ErrCommitUnknown)
		want(t, "Decrement", err, cut)
		_, err = stock.DecrementAll(lost.Model(&Stock{}), "sku", "remaining", map[int]int64{42: 1})
		want(t, "DecrementAll", err, stock.ErrCommitUnknown)
		if rest := left(t, db); rest != 8 {
			t.Errorf("%d are left", rest)
		}
		f.commit = func(tx gorm.TxCommitter) error { ok(t, "Rollback", tx.Rollback()); return stateError("40001") }
		if _, err = stock.Decrement(lost.Model(&Stock{}).Where("sku = 42"), "remaining", 1); errors.Is(err, stock.ErrCommitUnknown) {
			t.Errorf("a sure rollback: %v", err)
		}
	})
}

// TestDecrementAll_Releases: a savepoint that stands costs PostgreSQL a lock and memory each.
func TestDecrementAll_Releases(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000)
		f := &faulty{}
		ok(t, "Transaction", through(db, f).Transaction(func(tx *gorm.DB) error {
			for _, n := range []int64{1, 5000, 1} {
				_, err := stock.DecrementAll(tx.Model(&Stock{}), "sku", "remaining", map[int]int64{42: n})
				if (err == nil) != (n == 1) {
					t.Errorf("%d: %v", n, err)
				}
			}
			if db.Name() == "postgres" { // each subtransaction that stands has a lock on its id
				var locks int
				ok(t, "pg_locks", tx.Raw("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'transactionid'").Scan(&locks).Error)
				if locks > 3 {
					t.Errorf("%d locks on transaction ids", locks)
				}
			}
			return nil
		}))
		var open []string
		for _, query := range f.seen() {
			word, name, _ := strings.Cut(query, "SAVEPOINT ")
			switch word {
			case "":
				open = append(open, name)
			case "RELEASE ":
				open = slices.DeleteFunc(open, func(s string) bool { return s == name })
			}
		}
		if len(open) > 0 {
			t.Errorf("these savepoints stand: %q", open)
		}
		if rest := left(t, db); rest != 998 {
			t.Errorf("%d are left", rest)
		}
	})
}
