package gormlock_test

import (
	"bytes"
	"log"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestLogger_AsWithoutGuard: a guard that waits for its lock changes no logger. GORM's logger prints
// the line of the caller.
func TestLogger_AsWithoutGuard(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 100)
		l := locker(t, &hooked{Sealer: backendtest.Memory(), locked: func(string) { time.Sleep(5 * time.Millisecond) }})
		ok(t, "Use", db.Use(gormlock.New(l)))
		var out bytes.Buffer
		printed := logger.New(log.New(&out, "", 0), logger.Config{LogLevel: logger.Info})
		session := db.Session(&gorm.Session{Logger: printed})
		tx := session.Scopes(gormlock.Guard("k")).Model(&Stock{}).Where("sku = ?", 42).Update("left", 99)
		ok(t, "Update", tx.Error)
		if tx.Logger != printed || session.Logger != printed {
			t.Errorf("the loggers are a %T and a %T", tx.Logger, session.Logger)
		}
		if file, _, _ := strings.Cut(out.String(), ":"); !strings.HasSuffix(file, "gormlock/logger_test.go") {
			t.Errorf("got %s, want the line of the statement", out.String())
		}
	})
}
