package gormlock

import (
	"errors"
	"testing"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

func TestNew_NamesOfGORM(t *testing.T) {
	if !namesKnown() {
		t.Errorf("the stack does not name Set's associations %q any more", associationsOfSet)
	}
	was := namesKnown
	namesKnown = func() bool { return false }
	defer func() { namesKnown = was }()
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	conns, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()
	if err := db.Use(New(nil)); !errors.Is(err, errNames) {
		t.Errorf("Use = %v, want %v", err, errNames)
	}
}
