package gormlock_test

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// TestForms_Sessions runs transactions in transactions, options of sessions, raw SQL and tables by name.
func TestForms_Sessions(t *testing.T) {
	price := func(db *gorm.DB, id, price int) error {
		return db.Model(&Gadget{}).Where("id = ?", id).Update("price", price).Error
	}
	fails := func(fn func(tx *gorm.DB) error) func(tx *gorm.DB) error {
		return func(tx *gorm.DB) error { return errors.Join(fn(tx), errHook) }
	}
	session := func(name string, s gorm.Session) form {
		return form{"Session, " + name, never, func(db *gorm.DB, _ *notes) error {
			tx := db.Session(&s)
			// GORM prepares the SAVEPOINT of a session that prepares twice. MySQL cannot do that.
			if _, twice := db.Statement.ConnPool.(*gorm.PreparedStmtTX); twice && s.PrepareStmt {
				tx = db
			}
			return errors.Join(price(tx, 1, 1), tx.Create(&[]Gadget{{ID: 7, Code: "g"}, {ID: 8, Code: "h"}, {ID: 9, Code: "i"}}).Error,
				tx.Transaction(func(tx *gorm.DB) error {
					return errors.Join(price(tx, 2, 2), tx.Take(&Gadget{}, 1).Error)
				}))
		}}
	}
	statement := func(name string, refused refusal, run func(db *gorm.DB) error) form {
		return form{name, refused, func(db *gorm.DB, _ *notes) error { return run(db) }}
	}
	archive := func(db *gorm.DB) *gorm.DB { return db.Table("archived_gadgets") }
	shard := func(db *gorm.DB) *gorm.DB { return db.Scopes(archive).Session(&gorm.Session{}) }
	c := goods([]form{
		session("SkipDefaultTransaction", gorm.Session{SkipDefaultTransaction: true}),
		session("PrepareStmt", gorm.Session{PrepareStmt: true}),
		session("DisableNestedTransaction", gorm.Session{DisableNestedTransaction: true}),
		session("CreateBatchSize", gorm.Session{CreateBatchSize: 2}),
		session("QueryFields", gorm.Session{QueryFields: true}),
		session("PropagateUnscoped", gorm.Session{PropagateUnscoped: true}),
		session("Initialized", gorm.Session{Initialized: true}),
		statement("nested", never, func(db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error {
				err := errors.Join(price(tx, 1, 1), expect(tx.Transaction(fails(func(tx *gorm.DB) error { return price(tx, 2, 1) })), errHook))
				return errors.Join(err, tx.Transaction(func(tx *gorm.DB) error { return price(tx, 3, 1) }))
			})
		}),
		statement("nested, failing", never, func(db *gorm.DB) error {
			return db.Transaction(fails(func(tx *gorm.DB) error {
				return tx.Transaction(func(tx *gorm.DB) error { return price(tx, 1, 1) })
			}))
		}),
		statement("nested, disabled", never, func(db *gorm.DB) error {
			return db.Session(&gorm.Session{DisableNestedTransaction: true}).Transaction(func(tx *gorm.DB) error {
				return errors.Join(price(tx, 1, 1), expect(tx.Transaction(fails(func(tx *gorm.DB) error { return price(tx, 2, 1) })), errHook))
			})
		}),
		statement("nested, duplicate", never, func(db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error {
				if tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&Gadget{ID: 9, Code: "a"}).Error }) == nil {
					return errors.New("a duplicate was created")
				}
				return price(tx, 1, 1)
			})
		}),
		statement("savepoints", never, func(db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error {
				return errors.Join(price(tx, 1, 1), tx.SavePoint("a").Error, price(tx, 1, 2), tx.RollbackTo("a").Error, price(tx, 2, 3))
			})
		}),
		statement("by hand", never, func(db *gorm.DB) error { // in a block Begin fails
			tx := db.Begin()
			if tx.Error != nil {
				return tx.Error
			}
			return errors.Join(price(tx, 1, 1), commit(tx), price(tx, 2, 2), commit(tx))
		}),
		statement("by hand, rolled back", never, func(db *gorm.DB) error {
			tx := db.Begin()
			if tx.Error != nil {
				return tx.Error
			}
			return errors.Join(price(tx, 1, 1), rollback(tx), commit(tx), rollback(tx))
		}),
		{"Exec", never, func(db *gorm.DB, n *notes) error {
			tx := db.Exec("UPDATE gadgets SET price = ? WHERE id IN ?", gorm.Expr("price * ?", 2), []int{1, 2})
			return errors.Join(n.rows(tx), n.rows(db.Exec("DELETE FROM gadgets WHERE code = @code", map[string]any{"code": "c"})))
		}},
		statement("Exec, wrong", never, func(db *gorm.DB) error { return db.Exec("UPDATE nothing SET price = 1").Error }),
		writing("Table, Create", func(db *gorm.DB) *gorm.DB { return archive(db).Create(&Gadget{ID: 5, Code: "x"}) }),
		writing("Table, Create of several", func(db *gorm.DB) *gorm.DB {
			return archive(db).Clauses(clause.OnConflict{UpdateAll: true}).Create(&[]Gadget{{ID: 1, Code: "x"}, {ID: 2, Code: "y"}})
		}),
		writing("Table, map", func(db *gorm.DB) *gorm.DB { return archive(db).Where("id = ?", 1).Updates(map[string]any{"price": 2}) }),
		writing("Table by scope, Update", func(db *gorm.DB) *gorm.DB { return shard(db).Model(&Gadget{}).Where("id = ?", 1).Update("price", 3) }),
		writing("Table by scope, Delete", func(db *gorm.DB) *gorm.DB { return shard(db).Delete(&Gadget{}, 1) }),
		reading("Table, Find", func(db *gorm.DB, g *[]Gadget) *gorm.DB { return archive(db).Where("id > 0").Order("id").Find(g) }),
		reading("Table with another name", func(db *gorm.DB, m *[]map[string]any) *gorm.DB {
			return db.Table("gadgets AS g").Select("g.id, a.code").Joins("JOIN archived_gadgets a ON a.id = g.id").Find(m)
		}),
	})
	sharded(&c)
	compareForms(t, c)
}

// sharded adds a second table of gadgets to a chapter.
func sharded(c *chapter) {
	fixture := c.fixture
	c.models = append(c.models, &archivedGadget{})
	c.fixture = func() []any { return append(fixture(), &archivedGadget{Gadget{ID: 1, Code: "old"}}) }
}

type archivedGadget struct{ Gadget }

func (archivedGadget) TableName() string { return "archived_gadgets" }

// TestForms_Generics runs the generic interface. It drops scopes, so that Guard does not refuse it.
func TestForms_Generics(t *testing.T) {
	generic := func(name string, run func(ctx context.Context, g gorm.Interface[Gadget], n *notes) error) form {
		return form{name, never, func(db *gorm.DB, n *notes) error {
			return run(db.Statement.Context, gorm.G[Gadget](db), n)
		}}
	}
	affected := func(n *notes, rows int, err error) error { n.note(rows); return err }
	forms := []form{
		generic("Create", func(ctx context.Context, g gorm.Interface[Gadget], n *notes) error {
			gadget := Gadget{ID: 9, Code: "g"}
			err := g.Create(ctx, &gadget)
			n.note(gadget)
			return err
		}),
		generic("CreateInBatches", func(ctx context.Context, g gorm.Interface[Gadget], _ *notes) error {
			return g.CreateInBatches(ctx, &[]Gadget{{ID: 7, Code: "g"}, {ID: 8, Code: "h"}, {ID: 9, Code: "i"}}, 2)
		}),
		generic("Create, duplicate", func(ctx context.Context, g gorm.Interface[Gadget], _ *notes) error {
			return g.Create(ctx, &Gadget{ID: 9, Code: "a"})
		}),
		generic("First, Find, Count", func(ctx context.Context, g gorm.Interface[Gadget], n *notes) error {
			first, err := g.Where("price > ?", 10).First(ctx)
			all, findErr := g.Order("id").Limit(2).Find(ctx)
			count, countErr := g.Where("id > ?", 1).Count(ctx, "*")
			n.note(first, all, count)
			return errors.Join(err, findErr, countErr)
		}),
		generic("Take, not found", func(ctx context.Context, g gorm.Interface[Gadget], _ *notes) error {
			_, err := g.Where("id = ?", 99).Take(ctx)
			return err
		}),
		generic("FindInBatches", func(ctx context.Context, g gorm.Interface[Gadget], n *notes) error {
			return g.Where("id > ?", 0).FindInBatches(ctx, 2, func(data []Gadget, batch int) error { n.note(data, batch); return nil })
		}),
		generic("Update", func(ctx context.Context, g gorm.Interface[Gadget], n *notes) error {
			rows, err := g.Where("id = ?", 1).Update(ctx, "price", gorm.Expr("price + ?", 1))
			return affected(n, rows, err)
		}),
		generic("Updates", func(ctx context.Context, g gorm.Interface[Gadget], n *notes) error {
			rows, err := g.Where("id < ?", 3).Updates(ctx, Gadget{Color: "red"})
			return affected(n, rows, err)
		}),
		generic("Delete", func(ctx context.Context, g gorm.Interface[Gadget], n *notes) error {
			rows, err := g.Where("id = ?", 1).Delete(ctx)
			return affected(n, rows, err)
		}),
		generic("Delete, no condition", func(ctx context.Context, g gorm.Interface[Gadget], n *notes) error {
			rows, err := g.Delete(ctx)
			return affected(n, rows, err)
		}),
		generic("Exec", func(ctx context.Context, g gorm.Interface[Gadget], _ *notes) error {
			return g.Exec(ctx, "UPDATE gadgets SET price = ? WHERE id = ?", 5, 1)
		}),
		{"Session, NewDB", never, func(db *gorm.DB, n *notes) error {
			db = db.Where("id = 99").Session(&gorm.Session{NewDB: true, Context: db.Statement.Context})
			return n.rows(db.Model(&Gadget{}).Where("id = ?", 1).Update("price", 1))
		}},
		{"OnConflict", never, func(db *gorm.DB, _ *notes) error {
			return gorm.G[Gadget](db, clause.OnConflict{UpdateAll: true}).Create(db.Statement.Context, &Gadget{ID: 1, Code: "z"})
		}},
		{"Preload, Scopes", never, func(db *gorm.DB, n *notes) error {
			p, err := gorm.G[Parcel](db).Preload("Legs", nil).Scopes(func(s *gorm.Statement) {
				s.Where("country = ?", "DE")
			}).Order("number").Find(db.Statement.Context)
			n.note(p)
			return err
		}},
		{"Table", never, func(db *gorm.DB, n *notes) error {
			g, err := gorm.G[Gadget](db).Table("archived_gadgets").Find(db.Statement.Context)
			n.note(g)
			return err
		}},
	}
	c := goods(forms)
	c.noScopes = true
	sharded(&c)
	compareForms(t, c)
}
