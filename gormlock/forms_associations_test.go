package gormlock_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// Citizen has each kind of association.
type Citizen struct {
	ID        uint
	Name      string   `gorm:"size:64"`
	CompanyID *uint    // belongs to
	Company   *Company // belongs to
	Passport  *Passport
	Pets      []Pet
	Languages []Language `gorm:"many2many:citizen_languages"`
	Toys      []Toy      `gorm:"polymorphic:Owner"`
	Badge     *Badge     `gorm:"polymorphicType:Kind;polymorphicId:OwnerID;polymorphicValue:person"`
	ManagerID *uint
	Manager   *Citizen
	Team      []Citizen  `gorm:"foreignKey:ManagerID"`
	Friends   []*Citizen `gorm:"many2many:friendships"`
	Clubs     []Club     `gorm:"many2many:memberships"`
}

type Company struct {
	ID   uint
	Name string `gorm:"size:64"`
}

type Passport struct {
	ID        uint
	CitizenID *uint
	Number    string `gorm:"size:64"`
}

type Pet struct {
	ID        uint
	CitizenID *uint
	Name      string `gorm:"size:64;uniqueIndex"`
	Toys      []Toy  `gorm:"polymorphic:Owner"`
}

type Language struct {
	ID       uint
	Code     string    `gorm:"size:8;uniqueIndex"`
	Citizens []Citizen `gorm:"many2many:citizen_languages"`
}

type Toy struct {
	ID        uint
	Name      string `gorm:"size:64"`
	OwnerID   uint
	OwnerType string `gorm:"size:64"`
}

type Badge struct {
	ID      uint
	Color   string `gorm:"size:64"`
	OwnerID uint
	Kind    string `gorm:"size:64"`
}

type Club struct {
	ID   uint
	Name string `gorm:"size:64"`
}

// Membership is a join table with its own column and hook.
type Membership struct {
	CitizenID uint   `gorm:"primaryKey"`
	ClubID    uint   `gorm:"primaryKey"`
	Since     string `gorm:"size:64"`
}

func (m *Membership) BeforeCreate(*gorm.DB) error { m.Since = "the hook"; return nil }

func citizens(forms []form) chapter {
	return chapter{
		models: []any{&Company{}, &Citizen{}, &Passport{}, &Pet{}, &Language{}, &Toy{}, &Badge{}, &Club{}, &Membership{}},
		setup: func(db *gorm.DB) error {
			return db.SetupJoinTable(&Citizen{}, "Clubs", &Membership{})
		},
		fixture: func() []any {
			one := uint(1)
			ann := Citizen{
				ID: 1, Name: "ann", Company: &Company{ID: 1, Name: "mill"}, Passport: &Passport{ID: 1, Number: "a1"},
				Pets:      []Pet{{ID: 1, Name: "cat", Toys: []Toy{{ID: 2, Name: "mouse"}}}, {ID: 2, Name: "dog"}},
				Languages: []Language{{ID: 1, Code: "de"}, {ID: 2, Code: "en"}},
				Toys:      []Toy{{ID: 1, Name: "ball"}}, Badge: &Badge{ID: 1, Color: "red"},
				Clubs: []Club{{ID: 1, Name: "chess"}},
			}
			bob := Citizen{ID: 2, Name: "bob", ManagerID: &one, Friends: []*Citizen{{ID: 3, Name: "cem"}}}
			return []any{&ann, &bob, &Language{ID: 3, Code: "fr"}, &Company{ID: 2, Name: "shop"}}
		},
		forms: forms,
	}
}

func ann() *Citizen { return &Citizen{ID: 1, Name: "ann"} }

// TestForms_Associations runs the methods of Association for each kind.
func TestForms_Associations(t *testing.T) {
	one := uint(1)
	kinds := map[string]struct{ have, other any }{
		"Company":   {&Company{ID: 1}, &Company{ID: 9, Name: "bank"}},
		"Passport":  {&Passport{ID: 1, CitizenID: &one}, &Passport{ID: 9, Number: "z9"}},
		"Pets":      {&Pet{ID: 1, CitizenID: &one}, &Pet{ID: 9, Name: "fish"}},
		"Languages": {&Language{ID: 1}, &Language{ID: 9, Code: "tr"}},
		"Toys":      {&Toy{ID: 1}, &Toy{ID: 9, Name: "kite"}},
		"Badge":     {&Badge{ID: 1}, &Badge{ID: 9, Color: "blue"}},
		"Team":      {&Citizen{ID: 2}, &Citizen{ID: 9, Name: "dan"}},
		"Friends":   {&Citizen{ID: 3}, &Citizen{ID: 9, Name: "eve"}},
		"Clubs":     {&Club{ID: 1}, &Club{ID: 9, Name: "choir"}},
	}
	var forms []form
	for name, kind := range kinds {
		at := func(db *gorm.DB) *gorm.Association { return db.Model(ann()).Association(name) }
		add := func(method string, refused refusal, run func(db *gorm.DB, n *notes) error) {
			forms = append(forms, form{name + "." + method, refused, run})
		}
		add("Append, Delete", never, func(db *gorm.DB, _ *notes) error {
			return errors.Join(at(db).Append(copyOf(kind.other)), at(db).Delete(copyOf(kind.have)))
		})
		add("Replace", never, func(db *gorm.DB, _ *notes) error { return at(db).Replace(copyOf(kind.other)) })
		add("Clear", never, func(db *gorm.DB, _ *notes) error { return at(db).Clear() })
		add("Unscoped", never, func(db *gorm.DB, _ *notes) error {
			return errors.Join(at(db).Unscoped().Replace(copyOf(kind.other)), at(db).Unscoped().Clear())
		})
		add("Count, Find", byGuard, func(db *gorm.DB, n *notes) error {
			a, found := at(db), manyOf(kind.other)
			n.note(a.Count())
			err := errors.Join(a.Error, at(db).Find(found))
			n.note(found)
			return err
		})
	}
	forms = append(forms, form{"no such association", never, func(db *gorm.DB, _ *notes) error {
		return db.Model(ann()).Association("Cats").Append(&Pet{ID: 9})
	}})
	compareForms(t, citizens(forms))
}

// TestForms_SavedAssociations saves and deletes rows with their associations.
func TestForms_SavedAssociations(t *testing.T) {
	family := func() *Citizen {
		return &Citizen{
			ID: 10, Name: "fay", Company: &Company{ID: 10, Name: "bank"}, Passport: &Passport{ID: 10, Number: "f"},
			Pets:      []Pet{{ID: 10, Name: "fish", Toys: []Toy{{ID: 11, Name: "castle"}}}, {ID: 11, Name: "frog"}},
			Languages: []Language{{ID: 1, Code: "de"}, {ID: 10, Code: "tr"}}, Toys: []Toy{{ID: 10, Name: "kite"}},
			Badge: &Badge{ID: 10, Color: "blue"}, Manager: &Citizen{ID: 12, Name: "gus"},
			Team: []Citizen{{ID: 13, Name: "hal"}}, Friends: []*Citizen{{ID: 14, Name: "ida"}}, Clubs: []Club{{ID: 10, Name: "choir"}},
		}
	}
	full := &gorm.Session{FullSaveAssociations: true}
	changed := func() *Citizen { // ann, with changes in each association
		company := uint(1)
		return &Citizen{
			ID: 1, Name: "anna", CompanyID: &company, Company: &Company{ID: 1, Name: "big mill"}, Passport: &Passport{ID: 1, Number: "a2"},
			Pets: []Pet{{ID: 1, Name: "lion"}, {ID: 2, Name: "dog"}}, Languages: []Language{{ID: 1, Code: "at"}},
			Toys: []Toy{{ID: 1, Name: "cube"}}, Badge: &Badge{ID: 1, Color: "green"}, Friends: []*Citizen{{ID: 3, Name: "cem"}},
		}
	}
	save := func(write func(db *gorm.DB, c *Citizen) *gorm.DB) func(db *gorm.DB, n *notes) error {
		return func(db *gorm.DB, n *notes) error { return n.rows(write(db, changed())) }
	}
	create := func(write func(db *gorm.DB, c *Citizen) *gorm.DB) func(db *gorm.DB, n *notes) error {
		return func(db *gorm.DB, n *notes) error { return n.rows(write(db, family())) }
	}
	compareForms(t, citizens([]form{
		{"Create", never, create(func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Create(c) })},
		{"Create, full", never, create(func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Session(full).Create(c) })},
		{"Create, Omit all", never, create(func(db *gorm.DB, c *Citizen) *gorm.DB {
			return db.Omit(clause.Associations).Create(c)
		})},
		{"Create, Omit rows of many2many", never, create(func(db *gorm.DB, c *Citizen) *gorm.DB {
			return db.Omit("Languages.*").Create(c)
		})},
		{"Create, Omit a column", never, create(func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Omit("Pets.Name").Create(c) })},
		{"Create, Select", never, create(func(db *gorm.DB, c *Citizen) *gorm.DB {
			return db.Select("ID", "Name", "Pets").Create(c)
		})},
		{"Create, duplicate pet", never, create(func(db *gorm.DB, c *Citizen) *gorm.DB {
			c.Pets[1].Name = "fish"
			return db.Create(c)
		})},
		{"Save", never, save(func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Save(c) })},
		{"Save, full", never, save(func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Session(full).Save(c) })},
		{"Updates", never, save(func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Updates(c) })},
		{"Updates, full", never, save(func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Session(full).Updates(c) })},
		{"Updates, Omit", never, save(func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Omit("Pets", "Company").Updates(c) })},
		{"Delete, Select", never, func(db *gorm.DB, n *notes) error {
			return n.rows(db.Select("Passport", "Pets", "Languages", "Toys", "Badge").Delete(ann()))
		}},
		{"Delete, Select all", never, func(db *gorm.DB, n *notes) error {
			return n.rows(db.Select(clause.Associations).Delete(ann()))
		}},
		{"Delete, Select of several", never, func(db *gorm.DB, n *notes) error {
			return n.rows(db.Select("Pets", "Friends").Delete(&[]Citizen{{ID: 1}, {ID: 2}}))
		}},
		{"Association of several", never, func(db *gorm.DB, n *notes) error {
			both := []Citizen{{ID: 1}, {ID: 2}}
			err := db.Model(&both).Association("Languages").Append(&Language{ID: 3, Code: "fr"}, &[]Language{{ID: 9, Code: "tr"}})
			// Count returns 0 if the guard refuses it.
			n.note(db.Session(&gorm.Session{NewDB: true}).Model(&both).Association("Languages").Count())
			return errors.Join(err, db.Model(&both).Association("Pets").Replace(&Pet{ID: 8, Name: "a"}, &Pet{ID: 9, Name: "b"}))
		}},
		{"Association with conditions", byGuard, func(db *gorm.DB, n *notes) error {
			var l []Language
			err := db.Model(ann()).Where("code = ?", "de").Order("code").Association("Languages").Find(&l)
			n.note(l, db.Model(ann()).Where("code = ?", "de").Association("Languages").Count())
			return errors.Join(err, db.Model(ann()).Omit("Languages.*").Association("Languages").Append(&Language{ID: 3}))
		}},
		{"Association from a many2many's back", never, func(db *gorm.DB, _ *notes) error {
			return db.Model(&Language{ID: 3}).Association("Citizens").Append(&Citizen{ID: 2})
		}},
	}))
}
