package gormlock_test

import (
	"database/sql"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

type Ticket struct {
	ID     uint
	Event  string `gorm:"size:64"`
	Seat   uint8
	Row    *int
	Code   []byte
	Holder sql.NullString `gorm:"size:64"`
	Price  float64
	Parts  []TicketPart `gorm:"constraint:OnDelete:CASCADE"`
}

type TicketPart struct {
	ID       uint
	TicketID uint
}

func TestTemplate(t *testing.T) {
	t.Parallel()
	row := 7
	full := func() *Ticket {
		return &Ticket{Event: "a:b%{c}", Seat: 3, Row: &row, Code: []byte("xy"), Holder: sql.NullString{String: "me", Valid: true}, Price: 1}
	}
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Ticket{}, &TicketPart{}))
		j := &journal{}
		ok(t, "Use", db.Use(gormlock.New(locker(t, j.backend()))))
		one := func(template string) *gorm.DB { return db.Scopes(gormlock.Guard(template)) }
		locked := func(key string) []string {
			return []string{"lock onelane:{" + key + "}", "unlock onelane:{" + key + "}"}
		}
		ticket := full()
		ticket.Parts = []TicketPart{{}, {}}

		ok(t, "create with associations", one("{Event}:{seat}").Create(ticket).Error)
		j.want(t, "escaped as by core.Join", locked("a%253Ab%2525%7Bc%7D:3")...)
		for template, key := range map[string]string{"t:{ID}": "t:1", "{Row}": "7", "x{Code}y": "xxyy", "{Holder}": "me", "plain": "plain"} {
			ok(t, template, one(template).Model(ticket).Update("price", 2).Error)
			j.want(t, template, locked(key)...)
		}
		ok(t, "updates of the model itself", one("t:{ID}").Updates(ticket).Error)
		j.want(t, "updates", locked("t:1")...)
		ticket.Seat++ // or MariaDB counts no changed row, and GORM tries to insert it
		ok(t, "save", one("t:{ID}").Save(ticket).Error)
		j.want(t, "save", locked("t:1")...)
		ok(t, "delete", one("t:{ID}").Delete(ticket).Error)
		j.want(t, "delete", locked("t:1")...)
		reused := one("t:{ID}").Session(&gorm.Session{})
		for id := uint(2); id < 4; id++ {
			ok(t, "reused", reused.Model(&Ticket{ID: id}).Update("price", 2).Error)
		}
		j.want(t, "each its own", append(locked("t:2"), locked("t:3")...)...)
		same := one("t:{ID}").Model(&Ticket{ID: 2}) // a statement that is used again keeps what it has, but not the key
		ok(t, "the same statement", errors.Join(same.Update("price", 2).Error, same.Model(&Ticket{ID: 3}).Update("price", 2).Error))
		j.want(t, "each its own", append(locked("t:2"), locked("t:3")...)...)

		many := []string{"lock onelane:{t:2}", "lock onelane:{t:3}", "unlock onelane:{t:3}", "unlock onelane:{t:2}"}
		rows := []Ticket{{ID: 3, Event: "x"}, {ID: 2, Event: "x", Parts: []TicketPart{{}}}, {ID: 3, Event: "x"}}
		ok(t, "create a slice", one("t:{ID}").Create(rows[:2]).Error)
		j.want(t, "the key of each row, once and in order", many...)
		ok(t, "create pointers", one("t:{ID}").Create([]*Ticket{{ID: 12}, {ID: 11}}).Error)
		j.want(t, "pointers", "lock onelane:{t:11}", "lock onelane:{t:12}", "unlock onelane:{t:12}", "unlock onelane:{t:11}")
		ok(t, "update a slice", one("t:{ID}").Model(&rows).Update("price", 3).Error)
		j.want(t, "update", many...)
		rows[0].Seat, rows[1].Seat = 9, 9
		ok(t, "save a slice", one("t:{ID}").Save(rows[:2]).Error)
		j.want(t, "save", many...)
		ok(t, "delete a slice", one("t:{ID}").Delete(&rows).Error)
		j.want(t, "delete", many...)
	})
}

func TestTemplate_WithoutValue(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Ticket{}, &TicketPart{}))
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		one := func(template string) *gorm.DB { return db.Scopes(gormlock.Guard(template)) }
		null := &Ticket{ID: 1, Holder: sql.NullString{String: "not valid"}, Price: 1.5}
		for name, err := range map[string]error{
			"empty field":    one("t:{ID}").Create(&Ticket{}).Error,
			"only a Where":   one("t:{ID}").Model(&Ticket{}).Where("id = 1").Update("price", 2).Error,
			"no such field":  one("t:{Nope}").Create(&Ticket{ID: 1}).Error,
			"NULL":           one("t:{Holder}").Create(null).Error,
			"a float":        one("t:{Price}").Create(null).Error,
			"one of many":    one("t:{ID}").Create(&[]Ticket{{ID: 1}, {}}).Error,
			"nil of many":    one("t:{ID}").Create(&[]*Ticket{{ID: 1}, nil}).Error,
			"none":           one("t:{ID}").Create(&[]Ticket{}).Error,
			"maps":           one("t:{ID}").Model(&Ticket{}).Create([]map[string]any{{"id": 1}}).Error,
			"together":       one("{ID}{Seat}").Create(&Ticket{ID: 1, Seat: 1}).Error,
			"batches":        one("t:{ID}").CreateInBatches(&[]Ticket{{ID: 1}, {ID: 2}}, 1).Error,
			"map":            one("t:{ID}").Model(&Ticket{}).Create(map[string]any{"id": 1}).Error,
			"Exec":           one("t:{ID}").Exec("DELETE FROM tickets").Error,
			"block":          one("t:{ID}").Transaction(func(tx *gorm.DB) error { return tx.Create(&Ticket{ID: 1}).Error }),
			"open brace":     one("t:{ID").Create(&Ticket{ID: 1}).Error,
			"closed brace":   one("t:ID}").Create(&Ticket{ID: 1}).Error,
			"no name":        one("t:{}").Create(&Ticket{ID: 1}).Error,
			"braces within":  one("t:{a{b}").Create(&Ticket{ID: 1}).Error,
			"in transaction": db.Transaction(func(tx *gorm.DB) error { return tx.Scopes(gormlock.Guard("t:{ID}")).Create(&Ticket{ID: 1}).Error }),
		} {
			want(t, name, err, gormlock.ErrTemplate)
		}
		ok(t, "WithGuard takes keys as they are", db.WithContext(gormlock.WithGuard(t.Context(), "{ID", "{ID}")).Create(&Ticket{ID: 9}).Error)
		ok(t, "Transaction too", gormlock.Transaction(db, "{ID}", func(tx *gorm.DB) error {
			if !held(t, l, "{ID}") {
				t.Error("another key is locked")
			}
			return tx.Create(&Ticket{ID: 10}).Error
		}))
		var n int64
		ok(t, "Count", db.Model(&Ticket{}).Count(&n).Error)
		if n != 2 {
			t.Errorf("%d tickets, want 2", n)
		}
	})
}
