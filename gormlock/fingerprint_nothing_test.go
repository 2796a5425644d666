package gormlock_test

import (
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// A fingerprint of nothing is the same for all calls. It would also hide that of ClaimKey.
func TestFingerprint_OfNothing(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		var parts [][]byte // of a request that has none of the fields
		_, err := gormlock.Once(t.Context(), db, "pay:1", charge, gormlock.Fingerprint(parts...))
		if err == nil || !strings.Contains(err.Error(), "Fingerprint()") {
			t.Errorf("Once: %v, want an error that says Fingerprint", err)
		}
		if n := orders(t, db); n != 0 {
			t.Errorf("%d orders", n)
		}
	})
}
