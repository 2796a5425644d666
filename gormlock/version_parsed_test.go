package gormlock_test

import (
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// leafParsed stops the next goroutine that parses a Leaf.
var leafParsed struct{ reached, goOn chan struct{} }

type Leaf struct {
	ID       uint
	BranchID *uint
	Version  gormlock.Version
}

func (Leaf) TableName() string {
	if reached := leafParsed.reached; reached != nil {
		leafParsed.reached = nil
		close(reached)
		<-leafParsed.goOn
	}
	return "leaves"
}

type Branch struct {
	ID     uint
	TreeID *uint
	Tree   *Tree  `gorm:"foreignKey:TreeID"`
	Leaves []Leaf `gorm:"foreignKey:BranchID"`
}

type Tree struct {
	ID       uint
	Note     string   `gorm:"size:64"`
	Branches []Branch `gorm:"foreignKey:TreeID"`
}

// TestVersion_ParsedTooEarly: a statement that runs while another goroutine still parses the models
// must not hide their versions from all later ones.
func TestVersion_ParsedTooEarly(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "sqlite" {
			return
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Leaf{}, &Branch{}, &Tree{}))
		db = reopen(t, db) // as in a process that starts, no model is parsed
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		reached := make(chan struct{})
		leafParsed.reached, leafParsed.goOn = reached, make(chan struct{})
		parsed, created := make(chan error, 1), make(chan error, 1)
		go func() { parsed <- (&gorm.Statement{DB: db}).Parse(&Branch{}) }()
		<-reached
		tree := Tree{Note: "old"}
		go func() { created <- db.Transaction(func(tx *gorm.DB) error { return tx.Create(&tree).Error }) }()
		select {
		case err := <-created:
			created <- err
		case <-time.After(100 * time.Millisecond): // it waits for the other goroutine
		}
		close(leafParsed.goOn)
		ok(t, "Parse", <-parsed)
		ok(t, "Create", <-created)
		leaf := Leaf{}
		ok(t, "Create", db.Create(&leaf).Error)
		stale := leaf
		ok(t, "others", db.Model(&leaf).Update("branch_id", nil).Error)
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
			tree.Note, tree.Branches = "new", []Branch{{Leaves: []Leaf{stale}}}
			want(t, "Save", tx.Save(&tree).Error, gormlock.ErrStale)
			return nil
		}))
		var now Tree
		if ok(t, "Take", db.Take(&now, tree.ID).Error); now.Note != "old" {
			t.Errorf("Save returned ErrStale, and wrote %q", now.Note)
		}
	})
}
