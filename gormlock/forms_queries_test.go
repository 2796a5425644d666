package gormlock_test

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// reading returns a form that finds rows into dest, another pointer for each run.
func reading[T any](name string, find func(db *gorm.DB, dest *T) *gorm.DB) form {
	return form{name, byGuard, func(db *gorm.DB, n *notes) error {
		var dest T
		tx := find(db, &dest)
		n.note(tx.RowsAffected, dest)
		return tx.Error
	}}
}

// TestForms_Queries reads rows in GORM's ways.
func TestForms_Queries(t *testing.T) {
	type brief struct {
		Name  string
		Total int
	}
	named := func(names ...string) func(*gorm.DB) *gorm.DB {
		return func(db *gorm.DB) *gorm.DB { return db.Where("citizens.name IN ?", names) }
	}
	compareForms(t, citizens([]form{
		reading("First", func(db *gorm.DB, c *Citizen) *gorm.DB { return db.First(c) }),
		reading("Last", func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Last(c, "id < ?", 3) }),
		reading("Take, not found", func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Take(c, 99) }),
		reading("Find by keys", func(db *gorm.DB, c *[]Citizen) *gorm.DB { return db.Order("id").Find(c, []int{1, 3}) }),
		reading("conditions", func(db *gorm.DB, c *[]Citizen) *gorm.DB {
			return db.Where(&Citizen{Name: "ann"}).Or(map[string]any{"name": "bob"}).Not("id = ?", 9).Order("id desc").
				Where(db.Where("id > ?", 0).Or("id < ?", 0)).Limit(2).Offset(0).Find(c)
		}),
		reading("named arguments", func(db *gorm.DB, c *[]Citizen) *gorm.DB {
			return db.Where("name = @n OR id = @i", map[string]any{"n": "bob", "i": 3}).Order("id").Find(c)
		}),
		reading("into a map", func(db *gorm.DB, m *map[string]any) *gorm.DB {
			*m = map[string]any{}
			return db.Model(&Citizen{}).Select("name").Take(m, 1)
		}),
		reading("into a smaller struct", func(db *gorm.DB, b *[]brief) *gorm.DB { return db.Model(&Citizen{}).Order("id").Find(b) }),
		reading("groups", func(db *gorm.DB, b *[]brief) *gorm.DB {
			return db.Model(&Pet{}).Select("MAX(name) AS name, COUNT(*) AS total").Group("citizen_id").Having("COUNT(*) > ?", 1).Scan(b)
		}),
		reading("Distinct, Pluck", func(db *gorm.DB, s *[]string) *gorm.DB {
			return db.Model(&Citizen{}).Distinct().Order("name").Pluck("name", s)
		}),
		reading("Count", func(db *gorm.DB, n *int64) *gorm.DB { return db.Model(&Pet{}).Where("id > ?", 1).Count(n) }),
		reading("FirstOrInit", func(db *gorm.DB, c *Citizen) *gorm.DB {
			return db.Where(Citizen{Name: "zoe"}).Attrs(Citizen{ID: 7}).Assign(Citizen{Name: "zed"}).FirstOrInit(c)
		}),
		reading("no such column", func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Take(c, "nothing = 1") }),
		reading("locking", func(db *gorm.DB, c *Citizen) *gorm.DB {
			return db.Clauses(clause.Locking{Strength: "UPDATE"}).Take(c, 1)
		}),
		reading("Scopes", func(db *gorm.DB, c *[]Citizen) *gorm.DB {
			return db.Scopes(named("ann", "cem"), func(db *gorm.DB) *gorm.DB { return db.Order("id").Limit(1) }).Find(c)
		}),
		reading("sub-query in Where", func(db *gorm.DB, c *[]Citizen) *gorm.DB {
			return db.Where("id IN (?)", db.Model(&Pet{}).Select("citizen_id").Where("name = ?", "cat")).Find(c)
		}),
		reading("sub-query in From", func(db *gorm.DB, b *[]brief) *gorm.DB {
			sub := db.Model(&Citizen{}).Select("name, id AS total")
			return db.Table("(?) AS u", sub).Where("total > ?", 1).Order("total").Find(b)
		}),
		reading("Preload all", func(db *gorm.DB, c *Citizen) *gorm.DB {
			return db.Preload(clause.Associations).Preload("Languages", func(db *gorm.DB) *gorm.DB { return db.Order("code desc") }).
				Preload("Pets", "name <> ?", "dog").Take(c, 1)
		}),
		reading("Preload, nested", func(db *gorm.DB, c *[]Citizen) *gorm.DB {
			return db.Preload("Team.Friends").Preload("Manager.Company").Preload("Pets.Toys").Order("id").Find(c)
		}),
		reading("Preload, no such", func(db *gorm.DB, c *Citizen) *gorm.DB { return db.Preload("Cats").Take(c, 1) }),
		reading("Joins", func(db *gorm.DB, c *[]Citizen) *gorm.DB {
			return db.Joins("Company").Joins("Manager.Company").Joins("Badge", db.Where(&Badge{Color: "red"})).Order("citizens.id").Find(c)
		}),
		reading("InnerJoins", func(db *gorm.DB, c *[]Citizen) *gorm.DB {
			return db.InnerJoins("Passport", db.Where(&Passport{Number: "a1"})).Preload("Pets").Find(c)
		}),
		reading("Joins with SQL", func(db *gorm.DB, b *[]brief) *gorm.DB {
			return db.Model(&Citizen{}).Select("pets.name, citizens.id AS total").
				Joins("JOIN pets ON pets.citizen_id = citizens.id AND pets.id < ?", 9).Order("pets.id").Scan(b)
		}),
		reading("Joins with a sub-query", func(db *gorm.DB, c *[]Citizen) *gorm.DB {
			return db.Joins("JOIN (?) p ON p.citizen_id = citizens.id", db.Model(&Pet{}).Where("name = ?", "cat")).Find(c)
		}),
		{"Rows", byGuard, func(db *gorm.DB, n *notes) error {
			rows, err := db.Model(&Citizen{}).Order("id").Rows()
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var c Citizen
				err = errors.Join(err, db.ScanRows(rows, &c))
				n.note(c)
			}
			return errors.Join(err, rows.Err())
		}},
		{"Row", byGuard, func(db *gorm.DB, n *notes) error {
			var name string
			err := db.Model(&Citizen{}).Select("name").Where("id = ?", 2).Row().Scan(&name)
			n.note(name)
			return err
		}},
		{"Raw", byBoth, func(db *gorm.DB, n *notes) error {
			var b []brief
			return n.read(db.Raw("SELECT name, id AS total FROM citizens WHERE id > @id ORDER BY id", map[string]any{"id": 1}).Scan(&b), &b)
		}},
		{"Raw, Rows", byBoth, func(db *gorm.DB, n *notes) error {
			rows, err := db.Raw("SELECT id FROM pets ORDER BY id").Rows()
			if err != nil {
				return err
			}
			var id int
			for rows.Next() {
				err = errors.Join(err, rows.Scan(&id))
				n.note(id)
			}
			return errors.Join(err, rows.Close())
		}},
		{"Raw, Row", byBoth, func(db *gorm.DB, n *notes) error {
			var id int
			err := db.Raw("SELECT MAX(id) FROM pets WHERE id < ?", 2).Row().Scan(&id)
			n.note(id)
			return err
		}},
		{"FindInBatches", byGuard, func(db *gorm.DB, n *notes) error {
			var c []Citizen
			tx := db.FindInBatches(&c, 2, func(tx *gorm.DB, batch int) error {
				n.note(batch, c)
				for i := range c {
					c[i].Name += "!"
				}
				return n.rows(tx.Save(&c))
			})
			return n.rows(tx)
		}},
		{"FindInBatches that fails", byGuard, func(db *gorm.DB, n *notes) error {
			var c []Citizen
			return n.rows(db.Where("id > ?", 1).FindInBatches(&c, 1, func(tx *gorm.DB, batch int) error {
				n.note(batch)
				return errHook
			}))
		}},
		{"canceled context", byGuard, func(db *gorm.DB, n *notes) error {
			first := db.Take(&Citizen{}, 1).Error // begins a block's transaction
			ctx, cancel := context.WithCancel(db.Statement.Context)
			cancel()
			n.note(errors.Is(db.WithContext(ctx).Take(&Citizen{}, 1).Error, context.Canceled))
			return errors.Join(first, db.Take(&Citizen{}, 2).Error)
		}},
		{"FirstOrCreate of what is there", byGuard, func(db *gorm.DB, n *notes) error {
			var c Citizen
			return n.read(db.Where(Citizen{Name: "ann"}).Assign(Citizen{Name: "anna"}).FirstOrCreate(&c), &c)
		}},
		{"FirstOrCreate", byGuard, func(db *gorm.DB, n *notes) error {
			c := Citizen{ID: 50}
			return n.read(db.Where(Citizen{Name: "zoe"}).Attrs(Citizen{ID: 50}).FirstOrCreate(&c), &c)
		}},
	}))
}
