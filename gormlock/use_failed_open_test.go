package gormlock_test

import (
	"path/filepath"
	"testing"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
)

// TestUse_FailedOpen: errors.Join(err, db.Use(…)) reports why gorm.Open failed.
func TestUse_FailedOpen(t *testing.T) {
	t.Parallel()
	db, err := gorm.Open(sqlite.Open(filepath.Join(t.TempDir(), "none", "x.db")), &gorm.Config{Logger: logger.Discard})
	if err == nil {
		t.Fatal("Open: want an error")
	}
	if db.Use(gormlock.New(nil)) == nil {
		t.Error("Use: want an error")
	}
}
