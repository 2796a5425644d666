package optimistic_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/gormlock/optimistic"
)

// TestVersion_ReturnedInOtherOrder: RETURNING fills a slice in the order of the database.
func TestVersion_ReturnedInOtherOrder(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "mysql" {
			return // MariaDB's UPDATE has no RETURNING
		}
		all := []Account{{Name: "a"}, {Name: "b"}}
		ok(t, "Create", db.Create(&all).Error)
		others := db.Model(&Account{}).Where("name = ?", "a").Update("balance", 9)
		ok(t, "others", others.Error)
		ok(t, "Find", db.Order("id DESC").Find(&all).Error)
		ok(t, "Update", db.Model(&all).Clauses(clause.Returning{}).Update("balance", 5).Error)
		for i := range all {
			ok(t, all[i].Name, db.Model(&all[i]).Update("balance", 6).Error)
		}
	})
}

// TestVersion_ReturnedAndRolledBack: after a rollback the models of such a slice were not read.
func TestVersion_ReturnedAndRolledBack(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "mysql" {
			return // MariaDB's UPDATE has no RETURNING
		}
		all := []Account{{Name: "a"}, {Name: "b"}}
		ok(t, "Create", db.Create(&all).Error)
		var stale []Account
		ok(t, "Find", db.Order("id DESC").Find(&stale).Error)
		ok(t, "Find", db.Order("id DESC").Find(&all).Error)
		want(t, "rolled back", db.Transaction(func(tx *gorm.DB) error {
			ok(t, "Update", tx.Model(&all).Clauses(clause.Returning{}).Update("balance", 5).Error)
			return errNo
		}), errNo)
		ok(t, "others", db.Model(&Account{}).Where("name = ?", "b").Update("balance", 9).Error)
		want(t, "stale", db.Model(&stale).Clauses(clause.Returning{}).Update("balance", 5).Error, optimistic.ErrStale)
		ok(t, "others", db.Model(&Account{}).Where("name = ?", "a").Update("balance", 9).Error)
		for i := range all {
			want(t, all[i].Name, db.Model(&all[i]).Update("balance", 6).Error, optimistic.ErrStale)
		}
		for i := range stale { // of which GORM keeps what was returned
			want(t, stale[i].Name, db.Model(&stale[i]).Update("balance", 6).Error, optimistic.ErrStale)
		}
	})
}

// Carton, its parent and its namesake: a table in a schema, and one of the same name in the default schema.
type Carton struct {
	ID        uint
	TrolleyID *uint
	Left      int64
	Version   optimistic.Version
}

type Trolley struct {
	ID      uint
	Cartons []Carton `gorm:"foreignKey:TrolleyID"`
}

type Namesake Carton

func (Carton) TableName() string   { return "archive.cartons" }
func (Trolley) TableName() string  { return "archive.trolleys" }
func (Namesake) TableName() string { return "cartons" }

// TestVersion_TableInSchema: Save of a slice, and of a parent, writes the table in the schema, and not its namesake.
func TestVersion_TableInSchema(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "postgres" {
			return // SQLite's driver inserts into the namesake, and MariaDB's schema is another database
		}
		for _, create := range []string{"CREATE SCHEMA archive", "CREATE TABLE archive.trolleys (id serial PRIMARY KEY)",
			`CREATE TABLE archive.cartons (id serial PRIMARY KEY, trolley_id bigint, "left" bigint, version bigint)`} {
			ok(t, create, db.Exec(create).Error)
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Namesake{}))
		other := []Namesake{{ID: 1, Left: 7}, {ID: 2, Left: 7}}
		ok(t, "Create", db.Create(&other).Error)

		trolley := Trolley{Cartons: []Carton{{ID: 1, Left: 5}, {ID: 2, Left: 5}}}
		ok(t, "Create", db.Create(&trolley).Error)
		trolley.Cartons[0].Left, trolley.Cartons[1].Left = 4, 4
		ok(t, "Save of a slice", db.Save(&trolley.Cartons).Error)
		ok(t, "Save of a parent", db.Save(&trolley).Error)
		var mine []Carton
		ok(t, "Find", errors.Join(db.Order("id").Find(&mine).Error, db.Order("id").Find(&other).Error))
		for i := range mine {
			if mine[i].Left != 4 || mine[i].Version != 2 || other[i].Left != 7 || other[i].Version != 1 {
				t.Errorf("in the schema %+v, the namesake %+v", mine[i], other[i])
			}
		}
	})
}

// TestVersion_ReturnedAsNewModels: RETURNING makes new models in a slice of pointers, and fills a
// model that had no key. After a rollback these were not read.
func TestVersion_ReturnedAsNewModels(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "mysql" {
			return // MariaDB's UPDATE has no RETURNING
		}
		for name, write := range map[string]func(tx *gorm.DB, id uint) (*Account, error){
			"pointers": func(tx *gorm.DB, id uint) (*Account, error) {
				var all []*Account
				ok(t, "Find", tx.Find(&all, id).Error)
				err := tx.Model(&all).Clauses(clause.Returning{}).Update("balance", 5).Error
				return all[0], err
			},
			"a condition": func(tx *gorm.DB, id uint) (*Account, error) {
				var a Account
				err := tx.Model(&a).Clauses(clause.Returning{}).Where("id = ?", id).Update("balance", 5).Error
				return &a, err
			},
		} {
			row, _ := twice(t, db)
			var mine *Account
			want(t, name, db.Transaction(func(tx *gorm.DB) (err error) {
				mine, err = write(tx, row.ID)
				ok(t, name, err)
				wantVersion(t, name, mine.Version, 2)
				return errNo
			}), errNo)
			// Another transaction gives the row the same version.
			ok(t, "others", db.Model(&Account{}).Where("id = ?", row.ID).Update("balance", 9).Error)
			want(t, name+": after the rollback", db.Model(mine).Update("balance", mine.Balance-1).Error, optimistic.ErrStale)
			wantRow(t, name, db, row.ID, 9, 2)
		}
	})
}

// TestVersion_DeletedAndRolledBack: DELETE … RETURNING reads rows in the versions that they have.
// After a rollback they have them still.
func TestVersion_DeletedAndRolledBack(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Create", db.Create(&[]Seat{{Row: 1, Number: 1}, {Row: 1, Number: 2}}).Error)
		var gone []Seat
		want(t, "Delete", db.Transaction(func(tx *gorm.DB) error {
			ok(t, "Delete", tx.Clauses(clause.Returning{}).Where(map[string]any{"number": 2}).Delete(&gone).Error)
			return errNo
		}), errNo)
		if len(gone) == 0 && db.Name() == "mysql" {
			return // MySQL has no RETURNING
		}
		wantVersion(t, "after the rollback", gone[0].Edition, 1)
		ok(t, "Update", db.Model(&gone[0]).Update("taken", true).Error)
	})
}

// TestVersion_LargeBatch: as many rows as GORM writes without a version.
func TestVersion_LargeBatch(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine := make([]Account, 1200)
		ok(t, "Create", db.Create(&mine).Error)
		ok(t, "Update", db.Model(&mine).Update("balance", gorm.Expr("balance + 1")).Error)
		for _, i := range []int{0, 99, 100, 1199} {
			wantVersion(t, "Update", mine[i].Version, 2)
			wantRow(t, "Update", db, mine[i].ID, 1, 2)
		}
		ok(t, "Delete", db.Delete(&mine).Error)
	})
}

// TestVersion_CopyOfPointer: a copy of a model stays as it was read, although it shares the pointer.
func TestVersion_CopyOfPointer(t *testing.T) {
	t.Parallel()
	shopDB(t, func(t *testing.T, db *gorm.DB) {
		mine := Rack{Code: "x"}
		ok(t, "Create", db.Create(&mine).Error)
		old := mine
		ok(t, "Update", db.Model(&mine).Update("text", "a").Error)
		wantVersion(t, "the copy", *old.Version, 1)
		want(t, "the copy", db.Model(&old).Update("text", "b").Error, optimistic.ErrStale)
		want(t, "a block", db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.Model(&mine).Update("text", "c").Error, errNo)
		}), errNo)
		wantVersion(t, "after the rollback", *mine.Version, 2)
	})
}

// Visit is a table without a Version that stores one.
type Visit struct {
	ID      uint
	Version int64
}

func TestVersion_StoredElsewhere(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Visit{}))
		mine, _ := twice(t, db)
		for name, visits := range map[string]*gorm.DB{
			"a model": db.Model(&Visit{}), "a table": db.Table("visits"), "Unscoped": db.Unscoped().Model(&Visit{}),
		} {
			ok(t, name, visits.Create(map[string]any{"version": mine.Version}).Error)
		}
		var n int64
		if ok(t, "Count", db.Model(&Visit{}).Where("version = 1").Count(&n).Error); n != 3 {
			t.Errorf("%d rows, want 3", n)
		}
	})
}
