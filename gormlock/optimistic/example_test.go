package optimistic_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
)

// Two callers read a row, and both write it. The second one gets ErrStale.
func ExampleVersion() {
	type Page struct {
		ID      uint
		Text    string
		Version optimistic.Version
	}
	db, err := gorm.Open(sqlite.Open("file::memory:"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		log.Fatal(err)
	}
	conns, _ := db.DB()
	conns.SetMaxOpenConns(1) // all see one database in memory
	defer conns.Close()
	// No lock is needed, so the plugin has no Locker.
	if err := errors.Join(db.Use(gormlock.New(nil)), db.AutoMigrate(&Page{})); err != nil {
		log.Fatal(err)
	}
	var anna, ben Page
	db.Create(&Page{Text: "draft"})
	db.Take(&anna)
	db.Take(&ben)
	fmt.Println(db.Model(&anna).Update("text", "by Anna").Error)
	fmt.Println(errors.Is(db.Model(&ben).Update("text", "by Ben").Error, optimistic.ErrStale))
	db.Take(&ben)
	fmt.Println(ben.Text, ben.Version)
	// Output:
	// <nil>
	// true
	// by Anna 2
}
