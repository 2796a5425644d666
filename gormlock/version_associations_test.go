package gormlock_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/gormlock"
)

// Counted is embedded, and its version has another column.
type Counted struct {
	Edition gormlock.Version `gorm:"column:counted"`
}

// Shop has an association of each kind. Each of their models has a version, in another form.
type Shop struct {
	ID      uint
	Name    string `gorm:"size:64"`
	OwnerID *uint
	Owner   *VersionedOwner
	Sign    VersionedSign
	Racks   []Rack
	Tags    []Tag            `gorm:"many2many:shop_tags"`
	Photos  []VersionedPhoto `gorm:"polymorphic:Of"`
	Counted
}

type VersionedOwner struct {
	ID      uint
	Name    string `gorm:"size:64"`
	Version gormlock.Version
}

type VersionedSign struct {
	ID      uint
	ShopID  *uint
	Text    string `gorm:"size:64"`
	Version gormlock.Version
}

// Rack has a key of its own making.
type Rack struct {
	Code    string `gorm:"size:16;primaryKey"`
	ShopID  *uint
	Text    string `gorm:"size:64"`
	Version *gormlock.Version
	Boxes   []Box `gorm:"foreignKey:RackCode"`
}

type Box struct {
	ID       uint
	RackCode *string `gorm:"size:16"`
	*Counted
}

type Tag struct {
	ID      uint
	Text    string `gorm:"size:64"`
	Version gormlock.Version
}

type VersionedPhoto struct {
	ID      uint
	OfID    uint
	OfType  string `gorm:"size:64"`
	Text    string `gorm:"size:64"`
	Counted `gorm:"embedded;embeddedPrefix:n_"`
}

func newShop() *Shop {
	return &Shop{
		Name: "a", Owner: &VersionedOwner{Name: "o"}, Sign: VersionedSign{Text: "s"}, Tags: []Tag{{Text: "t"}}, Photos: []VersionedPhoto{{Text: "p"}},
		Racks: []Rack{{Code: "x", Boxes: []Box{{}}}, {Code: "y"}},
	}
}

func shopDB(t *testing.T, fn func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&VersionedOwner{}, &Shop{}, &VersionedSign{}, &Rack{}, &Box{}, &Tag{}, &VersionedPhoto{}))
		fn(t, db)
	})
}

func load(t *testing.T, db *gorm.DB, id uint) *Shop {
	t.Helper()
	var s Shop
	ordered := func(db *gorm.DB) *gorm.DB { return db.Order("code") }
	db = db.Preload("Owner").Preload("Sign").Preload("Racks", ordered).Preload("Racks.Boxes").Preload("Photos").
		Preload("Tags", func(db *gorm.DB) *gorm.DB { return db.Order("id") })
	ok(t, "Take", db.Take(&s, id).Error)
	return &s
}

// writeAll changes each model of a shop for itself.
func writeAll(db *gorm.DB, s *Shop) error {
	return errors.Join(
		db.Model(s.Owner).Update("name", "c").Error, db.Model(&s.Sign).Update("text", "c").Error,
		db.Model(&s.Racks[0]).Update("text", "c").Error, db.Model(&s.Racks[1]).Update("text", "c").Error,
		db.Model(&s.Racks[0].Boxes[0]).Update("rack_code", "x").Error,
		db.Model(&s.Tags[0]).Update("text", "c").Error, db.Model(&s.Photos[0]).Update("text", "c").Error,
		db.Model(s).Update("name", "c").Error,
	)
}

// TestVersion_ParentSaved: a write of a parent changes no version of its associations, in the rows
// or in the models.
func TestVersion_ParentSaved(t *testing.T) {
	t.Parallel()
	writes := map[string]func(db *gorm.DB, s *Shop) error{
		"Update":  func(db *gorm.DB, s *Shop) error { return db.Model(s).Update("name", "b").Error },
		"Updates": func(db *gorm.DB, s *Shop) error { return db.Updates(s).Error },
		"Save":    func(db *gorm.DB, s *Shop) error { return db.Save(s).Error },
		"a slice": func(db *gorm.DB, s *Shop) error { return db.Save([]*Shop{s}).Error },
		"Append": func(db *gorm.DB, s *Shop) error {
			return db.Model(s).Association("Racks").Append(&Rack{Code: "z"})
		},
		"everything": func(db *gorm.DB, s *Shop) error {
			return db.Session(&gorm.Session{FullSaveAssociations: true}).Save(s).Error
		},
		"in a block": func(db *gorm.DB, s *Shop) error {
			return db.Transaction(func(tx *gorm.DB) error { return tx.Save(s).Error })
		},
	}
	shopDB(t, func(t *testing.T, db *gorm.DB) {
		for name, write := range writes {
			shop := newShop()
			ok(t, name+": Create", db.Create(shop).Error)
			ok(t, name+": write after Create", writeAll(db, shop))
			mine, theirs := load(t, db, shop.ID), load(t, db, shop.ID)
			ok(t, name, write(db, mine))
			if name != "everything" {
				ok(t, name+": another reader's", errors.Join(db.Model(&theirs.Sign).Update("text", "d").Error,
					db.Model(&theirs.Racks[0]).Update("text", "d").Error, db.Model(&theirs.Photos[0]).Update("text", "d").Error,
					db.Model(theirs.Owner).Update("name", "d").Error, db.Model(&theirs.Tags[0]).Update("text", "d").Error))
				want(t, name+": the models", db.Model(&mine.Sign).Update("text", "e").Error, gormlock.ErrStale)
				mine = load(t, db, shop.ID)
				ok(t, name, db.Model(mine).Update("name", "f").Error)
			} else {
				want(t, name+": another reader's", db.Model(&theirs.Sign).Update("text", "d").Error, gormlock.ErrStale)
			}
			ok(t, name+": the models", writeAll(db, mine))
			ok(t, "Delete", db.Where("id > 0").Delete(&Box{}).Error)
			ok(t, "Delete", db.Where("code IN ?", []string{"x", "y", "z"}).Delete(&Rack{}).Error)
		}
	})
}

// TestVersion_ChildMoved: a child that is put to another parent is changed, under its version.
func TestVersion_ChildMoved(t *testing.T) {
	t.Parallel()
	shopDB(t, func(t *testing.T, db *gorm.DB) {
		from, to := newShop(), &Shop{Name: "b"}
		ok(t, "Create", errors.Join(db.Create(from).Error, db.Create(to).Error))
		mine, theirs := load(t, db, from.ID).Racks[0], load(t, db, from.ID).Racks[0]
		ok(t, "others", db.Model(&theirs).Update("text", "c").Error)
		move := func(tx *gorm.DB) error {
			to.Name, to.Racks = "moved", []Rack{{Code: "new"}, mine}
			want(t, "a stale child", tx.Save(to).Error, gormlock.ErrStale)
			return nil
		}
		for _, err := range []error{move(db), db.Transaction(move)} {
			ok(t, "Transaction", err)
			now := load(t, db, to.ID)
			if now.Name != "b" || now.Edition != 1 || len(now.Racks) != 0 || to.Edition != 1 {
				t.Fatalf("a stale child: the shop is %+v, the model has edition %d", now, to.Edition)
			}
			if to.Racks[0].Version != nil && *to.Racks[0].Version != 0 || *to.Racks[1].Version != 1 {
				t.Fatalf("a stale child: the racks are %+v", to.Racks)
			}
		}
		to.Racks = []Rack{theirs}
		ok(t, "a child", db.Save(to).Error)
		if v := to.Racks[0].Version; *v != 3 {
			t.Fatalf("a moved child has version %d", *v)
		}
		ok(t, "a moved child", db.Model(&to.Racks[0]).Update("text", "d").Error)
		want(t, "one not read", db.Model(to).Association("Racks").Append(&Rack{Code: "y"}), gormlock.ErrStale)
		ok(t, "Clear", db.Model(to).Association("Racks").Clear())
		want(t, "after Clear", db.Model(&theirs).Update("text", "d").Error, gormlock.ErrStale)

		gone := load(t, db, from.ID)
		ok(t, "Delete", db.Delete(&VersionedPhoto{}, gone.Photos[0].ID).Error)
		want(t, "a child that is gone", db.Model(gone).Update("name", "g").Error, gormlock.ErrStale)
		ok(t, "without it", db.Model(gone).Omit("Photos").Update("name", "g").Error)
	})
}

// TestVersion_OwnerNotRead: an association that exists and was not read does not pass for read.
func TestVersion_OwnerNotRead(t *testing.T) {
	t.Parallel()
	shopDB(t, func(t *testing.T, db *gorm.DB) {
		owner, tag := VersionedOwner{Name: "o"}, Tag{Text: "t"}
		ok(t, "Create", errors.Join(db.Create(&owner).Error, db.Create(&tag).Error))
		s := Shop{Owner: &VersionedOwner{ID: owner.ID, Name: "mine"}, Tags: []Tag{{ID: tag.ID, Text: "mine"}, {Text: "new"}}}
		ok(t, "Create", db.Create(&s).Error)
		wantVersion(t, "the owner", s.Owner.Version, 0)
		wantVersion(t, "the tag", s.Tags[0].Version, 0)
		want(t, "the owner", db.Model(s.Owner).Update("name", "c").Error, gormlock.ErrStale)
		want(t, "the tag", db.Model(&s.Tags[0]).Update("text", "c").Error, gormlock.ErrStale)
		ok(t, "the new tag", db.Model(&s.Tags[1]).Update("text", "c").Error)
		ok(t, "what was read", errors.Join(db.Model(&owner).Update("name", "d").Error, db.Model(&tag).Update("text", "d").Error))
		now := load(t, db, s.ID)
		if len(now.Tags) != 2 || now.Owner.Name != "d" || now.Tags[0].Text != "d" {
			t.Fatalf("the owner is %+v, the tags are %+v", now.Owner, now.Tags)
		}
		ok(t, "Delete with Select", db.Select("Tags", "Racks").Delete(now).Error)
	})
}

// Coupon has a key that PostgreSQL fills with spaces.
type Coupon struct {
	Code    string `gorm:"type:char(10);primaryKey"`
	Used    bool
	Version gormlock.Version
}

// TestVersion_KeyOfOtherText: the database may return a key as another text.
func TestVersion_KeyOfOtherText(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Coupon{}))
		c := Coupon{Code: "abc"}
		ok(t, "Create", db.Create(&c).Error)
		stale := c
		c.Used = true
		ok(t, "Save", db.Save([]*Coupon{&c}).Error)
		wantVersion(t, "Save", c.Version, 2)
		want(t, "a stale one", db.Save([]*Coupon{&stale}).Error, gormlock.ErrStale)
	})
}

// TestVersion_GenericSetOfMany shows the limit: GORM writes a many-to-many association by its
// table's name, without a model, so that no version rises. It also writes the tags of all shops.
func TestVersion_GenericSetOfMany(t *testing.T) {
	t.Parallel()
	shopDB(t, func(t *testing.T, db *gorm.DB) {
		one, other := newShop(), newShop()
		other.Racks = nil // their keys are those of the first one
		ok(t, "Create", db.Create(one).Error)
		ok(t, "Create", db.Create(other).Error)
		text := clause.Assignment{Column: clause.Column{Name: "text"}, Value: "theirs"}
		_, err := gorm.G[Shop](db).Where("id = ?", one.ID).Set(clause.Association{
			Association: "Tags", Type: clause.OpUpdate, Set: []clause.Assignment{text},
		}).Update(t.Context())
		ok(t, "Set", err)
		// gormlock.ErrStale, if GORM wrote by the model:
		ok(t, "what was read before", db.Model(&one.Tags[0]).Update("text", "mine").Error)
		var tag Tag
		ok(t, "Take", db.Take(&tag, other.Tags[0].ID).Error)
		if tag.Text != "theirs" {
			t.Errorf("GORM looks at the owners now: mend the sentence in docs/guarantees.md")
		}
	})
}
