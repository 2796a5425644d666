package gormlock_test

import (
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// Gadget is deleted softly.
type Gadget struct {
	ID        uint
	Code      string `gorm:"size:64;uniqueIndex"`
	Price     int
	Color     string `gorm:"size:64;default:gray"`
	CreatedAt time.Time
	UpdatedAt time.Time
	DeletedAt gorm.DeletedAt `gorm:"index"`
}

// Parcel has a composite key, and Leg refers to it.
type Parcel struct {
	Country string `gorm:"primaryKey;size:8"`
	Number  int    `gorm:"primaryKey;autoIncrement:false"`
	Weight  int
	Legs    []Leg `gorm:"foreignKey:ParcelCountry,ParcelNumber;references:Country,Number"`
}

type Leg struct {
	ID            uint
	ParcelCountry string `gorm:"size:8"`
	ParcelNumber  int
	Town          string `gorm:"size:64"`
}

// Visit has a key that the database makes. It is not compared.
type Visit struct {
	AutoID uint   `gorm:"primaryKey"`
	Page   string `gorm:"size:64"`
}

func goods(forms []form) chapter {
	return chapter{
		models: []any{&Gadget{}, &Parcel{}, &Leg{}, &Visit{}},
		fixture: func() []any {
			return []any{
				&[]Gadget{{ID: 1, Code: "a", Price: 10}, {ID: 2, Code: "b", Price: 20}, {ID: 3, Code: "c", Price: 30}},
				&[]Parcel{{"DE", 1, 5, []Leg{{ID: 1, Town: "Ulm"}}}, {"DE", 2, 6, nil}, {"FR", 1, 7, []Leg{{ID: 2, Town: "Lyon"}}}},
			}
		},
		forms: forms,
	}
}

// writing returns a form of one write. With PostgreSQL a block has ended after an error.
func writing(name string, write func(db *gorm.DB) *gorm.DB) form {
	return form{name, never, func(db *gorm.DB, n *notes) error { return n.rows(write(db)) }}
}

// TestForms_Writes writes rows in GORM's ways.
func TestForms_Writes(t *testing.T) {
	model := func(db *gorm.DB) *gorm.DB { return db.Model(&Gadget{}).Where("id = ?", 1) }
	two := func() *[]Gadget { return &[]Gadget{{ID: 1, Code: "a", Price: 99}, {ID: 4, Code: "d", Price: 40}} }
	onConflict := func(c clause.OnConflict) func(db *gorm.DB) *gorm.DB {
		return func(db *gorm.DB) *gorm.DB { return db.Clauses(c).Create(two()) }
	}
	id := []clause.Column{{Name: "id"}}
	compareForms(t, goods([]form{
		{"Create", never, func(db *gorm.DB, n *notes) error {
			g, v := Gadget{ID: 4, Code: "d"}, Visit{Page: "home"}
			if err := n.read(db.Create(&g), &g); err != nil {
				return err
			}
			defer func() { n.note(v.AutoID != 0) }()
			return n.rows(db.Create(&v))
		}},
		writing("Create, Select", func(db *gorm.DB) *gorm.DB { return db.Select("ID", "Code").Create(&Gadget{ID: 4, Code: "d", Price: 1}) }),
		writing("Create, Omit", func(db *gorm.DB) *gorm.DB { return db.Omit("Price").Create(&Gadget{ID: 4, Code: "d", Price: 1}) }),
		writing("Create, duplicate", func(db *gorm.DB) *gorm.DB { return db.Create(&Gadget{ID: 4, Code: "a"}) }),
		writing("Create, map", func(db *gorm.DB) *gorm.DB {
			return db.Model(&Gadget{}).Create(map[string]any{"ID": 4, "Code": clause.Expr{SQL: "UPPER(?)", Vars: []any{"d"}}})
		}),
		writing("Create, maps", func(db *gorm.DB) *gorm.DB {
			return db.Model(&Gadget{}).Create([]map[string]any{{"ID": 4, "Code": "d"}, {"ID": 5, "Code": "e"}})
		}),
		writing("Create, empty slice", func(db *gorm.DB) *gorm.DB { return db.Create(&[]Gadget{}) }),
		writing("Create, pointers", func(db *gorm.DB) *gorm.DB { return db.Create([]*Gadget{{ID: 4, Code: "d"}, {ID: 5, Code: "e"}}) }),
		writing("Create, keys of a batch", func(db *gorm.DB) *gorm.DB { return db.Create(&[]Visit{{Page: "a"}, {Page: "b"}, {Page: "c"}}) }),
		writing("CreateInBatches", func(db *gorm.DB) *gorm.DB {
			return db.CreateInBatches(&[]Gadget{{ID: 4, Code: "d"}, {ID: 5, Code: "e"}, {ID: 6, Code: "f"}}, 2)
		}),
		writing("CreateInBatches, duplicate", func(db *gorm.DB) *gorm.DB {
			return db.CreateInBatches(&[]Gadget{{ID: 4, Code: "d"}, {ID: 5, Code: "e"}, {ID: 6, Code: "a"}}, 2)
		}),
		writing("OnConflict, nothing", onConflict(clause.OnConflict{DoNothing: true})),
		writing("OnConflict, all", onConflict(clause.OnConflict{UpdateAll: true})),
		writing("OnConflict, columns", onConflict(clause.OnConflict{Columns: id, DoUpdates: clause.AssignmentColumns([]string{"price"})})),
		writing("OnConflict, values", onConflict(clause.OnConflict{Columns: id, DoUpdates: clause.Assignments(map[string]any{"price": gorm.Expr("gadgets.price + 1")})})),
		writing("Save", func(db *gorm.DB) *gorm.DB { return db.Save(&Gadget{ID: 1, Code: "z"}) }),
		writing("Save of what is not there", func(db *gorm.DB) *gorm.DB { return db.Save(&Gadget{ID: 9, Code: "z"}) }),
		writing("Save of several", func(db *gorm.DB) *gorm.DB { return db.Save(two()) }),
		writing("Update", func(db *gorm.DB) *gorm.DB { return model(db).Update("price", 1) }),
		writing("Update, expression", func(db *gorm.DB) *gorm.DB { return model(db).Update("price", gorm.Expr("price * ? + ?", 2, 1)) }),
		writing("Update, sub-query", func(db *gorm.DB) *gorm.DB {
			return model(db).Update("price", db.Model(&Parcel{}).Select("MAX(weight)").Where("country = ?", "DE"))
		}),
		writing("Updates, struct", func(db *gorm.DB) *gorm.DB { return db.Updates(&Gadget{ID: 1, Price: 7}) }),
		writing("Updates, map", func(db *gorm.DB) *gorm.DB { return model(db).Updates(map[string]any{"price": 0, "color": "red"}) }),
		writing("Updates, Select", func(db *gorm.DB) *gorm.DB { return model(db).Select("Price", "Color").Updates(Gadget{Code: "no"}) }),
		writing("Updates, Omit", func(db *gorm.DB) *gorm.DB { return model(db).Omit("Code").Updates(Gadget{Code: "no", Price: 4}) }),
		writing("UpdateColumn", func(db *gorm.DB) *gorm.DB { return model(db).UpdateColumn("price", 3) }),
		writing("UpdateColumns", func(db *gorm.DB) *gorm.DB { return model(db).UpdateColumns(Gadget{Price: 3}) }),
		writing("Update, several rows", func(db *gorm.DB) *gorm.DB { return db.Model(&Gadget{}).Where("price > ?", 10).Update("price", 1) }),
		writing("Update, no row", func(db *gorm.DB) *gorm.DB { return db.Model(&Gadget{ID: 99}).Update("price", 1) }),
		writing("Update, no condition", func(db *gorm.DB) *gorm.DB { return db.Model(&Gadget{}).Update("price", 1) }),
		writing("Update, all rows", func(db *gorm.DB) *gorm.DB {
			return db.Session(&gorm.Session{AllowGlobalUpdate: true}).Model(&Gadget{}).Update("price", 1)
		}),
		{"Update, Returning", never, func(db *gorm.DB, n *notes) error {
			var g []Gadget
			return n.read(db.Model(&g).Clauses(clause.Returning{Columns: id}).Where("price = ?", 20).Update("price", 21), &g)
		}},
		writing("Delete", func(db *gorm.DB) *gorm.DB { return db.Delete(&Gadget{ID: 1}) }),
		writing("Delete by key", func(db *gorm.DB) *gorm.DB { return db.Delete(&Gadget{}, []int{1, 2}) }),
		writing("Delete, condition", func(db *gorm.DB) *gorm.DB { return db.Where("price > ?", 10).Delete(&Gadget{}) }),
		writing("Delete, no condition", func(db *gorm.DB) *gorm.DB { return db.Delete(&Gadget{}) }),
		writing("Delete, Unscoped", func(db *gorm.DB) *gorm.DB { return db.Unscoped().Delete(&Gadget{ID: 1}) }),
		{"Delete, Returning", never, func(db *gorm.DB, n *notes) error {
			var l []Leg
			return n.read(db.Clauses(clause.Returning{}).Where("town = ?", "Ulm").Delete(&l), &l)
		}},
		{"soft delete, read", byGuard, func(db *gorm.DB, n *notes) error {
			var left, all []Gadget
			if err := n.rows(db.Delete(&Gadget{ID: 1})); err != nil {
				return err
			}
			if err := n.read(db.Order("id").Find(&left), &left); err != nil {
				return err
			}
			n.note(db.Take(&Gadget{}, 1).Error == gorm.ErrRecordNotFound)
			return n.read(db.Unscoped().Select("id", "code").Order("id").Find(&all), &all)
		}},
		writing("composite, Save", func(db *gorm.DB) *gorm.DB { return db.Save(&Parcel{"DE", 1, 50, []Leg{{ID: 9, Town: "Bonn"}}}) }),
		writing("composite, Create", func(db *gorm.DB) *gorm.DB { return db.Create(&Parcel{"FR", 2, 50, []Leg{{ID: 9, Town: "Bonn"}}}) }),
		writing("composite, upsert", func(db *gorm.DB) *gorm.DB {
			return db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&[]Parcel{{"FR", 1, 70, nil}, {"FR", 2, 71, nil}})
		}),
		writing("composite, Update", func(db *gorm.DB) *gorm.DB { return db.Model(&Parcel{Country: "DE", Number: 2}).Update("weight", 60) }),
		writing("composite, Delete", func(db *gorm.DB) *gorm.DB {
			return db.Select("Legs").Delete(&[]Parcel{{Country: "DE", Number: 1}, {Country: "FR", Number: 1}})
		}),
		reading("composite, Find", func(db *gorm.DB, p *[]Parcel) *gorm.DB {
			return db.Preload("Legs").Where("(country, number) IN ?", [][]any{{"DE", 1}, {"FR", 1}}).Order("country").Find(p)
		}),
	}))
}
