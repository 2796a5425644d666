package gormlock_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// Account has a version, and is deleted softly, by a field that stands before it.
type Account struct {
	gorm.Model
	Name    string `gorm:"size:64"`
	Balance int64
	Version gormlock.Version
	Notes   []Note
}

type Note struct {
	ID        uint
	AccountID uint
	Version   *gormlock.Version
}

// Seat has two keys, and its rows are gone when they are deleted.
type Seat struct {
	Row, Number int `gorm:"primaryKey;autoIncrement:false"`
	Taken       bool
	Edition     gormlock.Version `gorm:"column:edition"`
}

func versionedDB(t *testing.T, fn func(t *testing.T, db *gorm.DB), opts ...gorm.Option) {
	t.Helper()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Account{}, &Note{}, &Seat{}))
		fn(t, db)
	}, opts...)
}

// open creates an account and reads it twice.
func twice(t testing.TB, db *gorm.DB) (mine, theirs Account) {
	t.Helper()
	a := Account{Name: "a", Balance: 10}
	ok(t, "Create", db.Create(&a).Error)
	if a.Version != 1 {
		t.Fatalf("a new row has version %d", a.Version)
	}
	ok(t, "Take", errors.Join(db.Take(&mine, a.ID).Error, db.Take(&theirs, a.ID).Error))
	return mine, theirs
}

// versionedWrites are all the ways to write an account that was read.
var versionedWrites = map[string]func(db *gorm.DB, a *Account) error{
	"Update": func(db *gorm.DB, a *Account) error { return db.Model(a).Update("balance", 5).Error },
	"Update by Expr": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Update("balance", gorm.Expr("balance - 5")).Error
	},
	"UpdateColumn":  func(db *gorm.DB, a *Account) error { return db.Model(a).UpdateColumn("balance", 5).Error },
	"UpdateColumns": func(db *gorm.DB, a *Account) error { return db.Model(a).UpdateColumns(Account{Balance: 5}).Error },
	"Updates, map": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Updates(map[string]any{"balance": 5, "name": "b"}).Error
	},
	"Updates, struct": func(db *gorm.DB, a *Account) error { return db.Model(a).Updates(Account{Balance: 5}).Error },
	"Updates of itself": func(db *gorm.DB, a *Account) error {
		a.Balance = 5
		return db.Updates(a).Error
	},
	"Save": func(db *gorm.DB, a *Account) error {
		a.Balance = 5
		return db.Save(a).Error
	},
	"Select": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Select("balance").Updates(Account{Balance: 5}).Error
	},
	"Select *": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Select("*").Omit("id", "created_at").Updates(Account{Balance: 5}).Error
	},
	"Omit": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Omit("version").Updates(Account{Balance: 5}).Error
	},
	"Where": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Where("balance > ?", 0).Or("balance = 0").Update("balance", 5).Error
	},
	"Returning": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Clauses(clause.Returning{}).Update("balance", 5).Error
	},
	"Set": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Clauses(clause.Set{{Column: clause.Column{Name: "balance"}, Value: 5}}).Where("id = ?", a.ID).Updates(nil).Error
	},
	"in a block": func(db *gorm.DB, a *Account) error {
		return db.Transaction(func(tx *gorm.DB) error { return tx.Model(a).Update("balance", 5).Error })
	},
	"guarded": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Scopes(gormlock.Guard("k")).Update("balance", 5).Error
	},
	"slice of one": func(db *gorm.DB, a *Account) error { return db.Model([]*Account{a}).Update("balance", 5).Error },
	"without default transaction": func(db *gorm.DB, a *Account) error {
		return db.Session(&gorm.Session{SkipDefaultTransaction: true}).Model(a).Update("balance", 5).Error
	},
	"generics, struct": func(db *gorm.DB, a *Account) error {
		b := *a
		b.Balance = 5
		_, err := gorm.G[Account](db).Where("id = ?", a.ID).Updates(db.Statement.Context, b)
		if err == nil {
			a.Version++
		}
		return err
	},
	"version in a map": func(db *gorm.DB, a *Account) error { // as JSON gives it
		var m map[string]any
		text, err := json.Marshal(map[string]any{"balance": 5, "version": a.Version})
		err = errors.Join(err, json.Unmarshal(text, &m))
		if err := errors.Join(err, db.Model(&Account{}).Where("id = ?", a.ID).Updates(m).Error); err != nil {
			return err
		}
		a.Version++
		return nil
	},
}

// TestVersion_StaleWritesFail: a write based on an old read is ErrStale and changes nothing; one on the newest is done.
func TestVersion_StaleWritesFail(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		for name, write := range versionedWrites {
			if name == "Returning" && db.Name() == "mysql" {
				continue // MariaDB's UPDATE has no RETURNING
			}
			mine, theirs := twice(t, db)
			ok(t, name, write(db, &mine))
			var now Account
			ok(t, "Take", db.Take(&now, mine.ID).Error)
			if now.Balance != 5 || now.Version != 2 || mine.Version != 2 {
				t.Fatalf("%s: balance %d in version %d, the model has version %d", name, now.Balance, now.Version, mine.Version)
			}
			err := write(db, &theirs)
			want(t, name+", stale", err, gormlock.ErrStale)
			if theirs.Version != 1 || !strings.Contains(err.Error(), "accounts") {
				t.Fatalf("%s: the stale model has version %d, and the error is %v", name, theirs.Version, err)
			}
			var after Account
			if ok(t, "Take", db.Take(&after, mine.ID).Error); after.Balance != now.Balance || after.Name != now.Name || after.Version != 2 {
				t.Fatalf("%s: a stale write changed %+v to %+v", name, now, after)
			}
			ok(t, name+" again", write(db, &mine))
			if ok(t, "Take", db.Take(&after, mine.ID).Error); after.Version != 3 {
				t.Fatalf("%s again: version %d", name, after.Version)
			}
		}
	})
}

func TestVersion_Delete(t *testing.T) {
	t.Parallel()
	deletes := map[string]func(db *gorm.DB, a *Account) error{
		"softly":     func(db *gorm.DB, a *Account) error { return db.Delete(a).Error },
		"for good":   func(db *gorm.DB, a *Account) error { return db.Unscoped().Delete(a).Error },
		"by Model":   func(db *gorm.DB, a *Account) error { return db.Model(a).Delete(&Account{}).Error },
		"a slice":    func(db *gorm.DB, a *Account) error { return db.Delete(&[]Account{*a}).Error },
		"with Where": func(db *gorm.DB, a *Account) error { return db.Where("balance = 0").Or("balance > 0").Delete(a).Error },
	}
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		for name, del := range deletes {
			mine, theirs := twice(t, db)
			ok(t, "Update", db.Model(&mine).Update("balance", 5).Error)
			want(t, name+", stale", del(db, &theirs), gormlock.ErrStale)
			ok(t, name+", stale: the row is there", db.Take(&Account{}, mine.ID).Error)
			ok(t, name, del(db, &mine))
			want(t, name, db.Take(&Account{}, mine.ID).Error, gorm.ErrRecordNotFound)
			want(t, name+" again", del(db, &mine), gormlock.ErrStale)
			want(t, name+", then Update", db.Model(&mine).Update("balance", 6).Error, gormlock.ErrStale)
			want(t, name+", then Save", db.Save(&mine).Error, gormlock.ErrStale)
		}
	})
}

// TestVersion_SoftDelete: a soft delete changes the row, so that others cannot bring it back unawares.
func TestVersion_SoftDelete(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		for name, del := range map[string]func(a *Account) error{
			"of the model":  func(a *Account) error { return db.Delete(a).Error },
			"by conditions": func(a *Account) error { defer func() { a.Version++ }(); return db.Delete(&Account{}, a.ID).Error },
		} {
			mine, theirs := twice(t, db)
			ok(t, name, del(&mine))
			want(t, name+", stale Save", db.Unscoped().Save(&theirs).Error, gormlock.ErrStale)
			want(t, name+", stale Delete", db.Unscoped().Delete(&theirs).Error, gormlock.ErrStale)
			want(t, name, db.Take(&Account{}, mine.ID).Error, gorm.ErrRecordNotFound)
			ok(t, name+", brought back", db.Unscoped().Model(&mine).Update("deleted_at", nil).Error)
			ok(t, name+", again", db.Delete(&mine).Error)
			ok(t, name+", for good", db.Unscoped().Delete(&mine).Error)
		}
	})
}

// TestVersion_Given: a version in what is to be written must be the row's, whatever type it has there.
func TestVersion_Given(t *testing.T) {
	t.Parallel()
	type part struct {
		Balance int64
		Version *int64
	}
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		ok(t, "Update", db.Model(&mine).Update("balance", 5).Error)
		other, two := int64(1), int64(2)
		write := func(version any) error {
			return db.Model(&Account{}).Where("id = ?", mine.ID).Updates(map[string]any{"balance": 7, "version": version}).Error
		}
		for _, version := range []any{1, json.Number("1"), "1", []byte("1"), 1.0, 0, nil, (*int)(nil), &other, uint8(3), sql.NullInt64{Int64: 1, Valid: true}, sql.NullInt64{}} {
			want(t, fmt.Sprintf("%T %v", version, version), write(version), gormlock.ErrStale)
		}
		for _, version := range []any{"one", "", 1.5, struct{}{}, true, "99999999999999999999"} {
			want(t, fmt.Sprintf("%T %v", version, version), write(version), gorm.ErrInvalidData)
		}
		want(t, "another struct", db.Model(&Account{}).Where("id = ?", mine.ID).Updates(part{7, &other}).Error, gormlock.ErrStale)
		if ok(t, "Take", db.Take(&mine, mine.ID).Error); mine.Balance != 5 || mine.Version != 2 {
			t.Fatalf("%+v", mine)
		}
		ok(t, "another struct, the row's", db.Model(&Account{}).Where("id = ?", mine.ID).Updates(part{7, &two}).Error)
		ok(t, "text, the row's", write("3"))
		ok(t, "an expression is no version", write(gorm.Expr("version + 5")))
		if ok(t, "Take", db.Take(&mine, mine.ID).Error); mine.Balance != 7 || mine.Version != 5 {
			t.Fatalf("%+v", mine)
		}
	})
}

// TestVersion_Batches: all rows in their versions, or none is written.
func TestVersion_Batches(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		seats := []Seat{{Row: 1, Number: 1}, {Row: 1, Number: 2}, {Row: 2, Number: 1}}
		ok(t, "Create", db.Create(&seats).Error)
		var mine, theirs []Seat
		ok(t, "Find", errors.Join(db.Find(&mine).Error, db.Find(&theirs).Error))
		ok(t, "one changes", db.Model(&theirs[1]).Update("taken", true).Error)
		want(t, "update", db.Model(&mine).Update("taken", true).Error, gormlock.ErrStale)
		want(t, "delete", db.Delete(&mine).Error, gormlock.ErrStale)
		want(t, "in a block", db.Transaction(func(tx *gorm.DB) error { return tx.Model(&mine).Update("taken", true).Error }), gormlock.ErrStale)
		plain := db.Session(&gorm.Session{SkipDefaultTransaction: true})
		want(t, "without a transaction", plain.Model(&theirs).Update("taken", true).Error, gormlock.ErrNoTransaction)
		var taken int64
		if ok(t, "Count", db.Model(&Seat{}).Where("taken = ?", true).Count(&taken).Error); taken != 1 {
			t.Fatalf("%d seats are taken, want one", taken)
		}
		ok(t, "update", db.Model(&theirs).Update("taken", true).Error)
		if theirs[0].Edition != 2 || theirs[1].Edition != 3 {
			t.Errorf("the models have editions %d and %d", theirs[0].Edition, theirs[1].Edition)
		}
		ok(t, "delete", db.Delete(&theirs).Error)

		zeros := []Seat{{Row: 0, Number: 1}, {Row: 1, Number: 0}, {Row: 5, Number: 1}}
		ok(t, "Create", db.Create(&zeros).Error)
		ok(t, "one changes", db.Model(&Seat{}).Where(map[string]any{"row": 0}).Update("taken", true).Error)
		want(t, "keys with a 0 in them", db.Model(zeros[:2]).Update("taken", true).Error, gormlock.ErrStale)
		want(t, "a key with a 0 in it", db.Model(&zeros[0]).Update("taken", true).Error, gormlock.ErrStale)
		if ok(t, "Count", db.Model(&Seat{}).Where("taken = ?", true).Count(&taken).Error); taken != 1 {
			t.Fatalf("%d seats are taken, want one", taken)
		}
		want(t, "not a pointer", db.Create(Seat{Row: 9, Number: 9}).Error, gorm.ErrInvalidValue)
		want(t, "Save of a slice", db.Save(&[]Seat{{Row: 1, Number: 1}}).Error, gorm.ErrNotImplemented)
	})
}

// TestVersion_ByConditions: no version is asked for, and what others have read is stale.
func TestVersion_ByConditions(t *testing.T) {
	t.Parallel()
	writes := map[string]func(db *gorm.DB, id uint) error{
		"Update": func(db *gorm.DB, id uint) error {
			return db.Model(&Account{}).Where("id = ?", id).Update("balance", 5).Error
		},
		"Updates": func(db *gorm.DB, id uint) error { return db.Where("id = ?", id).Updates(&Account{Balance: 5}).Error },
		"Decrement": func(db *gorm.DB, id uint) error {
			return decrement(db.Model(&Account{Model: gorm.Model{ID: id}}), "balance", 5)
		},
		"an upsert": func(db *gorm.DB, id uint) error {
			return db.Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "id"}}, DoUpdates: clause.AssignmentColumns([]string{"balance"})}).
				Create(&Account{Model: gorm.Model{ID: id}, Balance: 5}).Error
		},
	}
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		for name, write := range writes {
			mine, _ := twice(t, db)
			ok(t, name, write(db, mine.ID))
			want(t, name+" makes stale", db.Model(&mine).Update("balance", 9).Error, gormlock.ErrStale)
			if ok(t, "Take", db.Take(&mine, mine.ID).Error); mine.Balance != 5 || mine.Version != 2 {
				t.Errorf("%s: %+v", name, mine)
			}
		}
		none := db.Model(&Account{}).Where("id = ?", 0).Update("balance", 5)
		if none.Error != nil || none.RowsAffected != 0 {
			t.Errorf("no such row: %v", none.Error)
		}
		want(t, "no condition", db.Updates(&Account{Balance: 5, Version: 1}).Error, gorm.ErrMissingWhereClause)
		want(t, "no condition", db.Delete(&Account{Version: 1}).Error, gorm.ErrMissingWhereClause)
		mine, _ := twice(t, db)
		want(t, "not enough is not stale", decrement(db.Model(&mine), "balance", 11), gormlock.ErrInsufficient)
	})
}

// TestVersion_NotRead: a model that has no version is stale, unless its row has none either.
func TestVersion_NotRead(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		var part Account
		ok(t, "Select", db.Select("id", "balance").Take(&part, mine.ID).Error)
		want(t, "Update", db.Model(&part).Update("balance", 5).Error, gormlock.ErrStale)
		for _, old := range []any{nil, 0} {
			ok(t, "Exec", db.Exec("UPDATE accounts SET version = ? WHERE id = ?", old, mine.ID).Error)
			var one, two Account
			ok(t, "Take", errors.Join(db.Take(&one, mine.ID).Error, db.Take(&two, mine.ID).Error))
			ok(t, "Update", db.Model(&one).Update("balance", 5).Error)
			want(t, "stale", db.Model(&two).Update("balance", 6).Error, gormlock.ErrStale)
			if ok(t, "Take", db.Take(&two, mine.ID).Error); two.Version != 1 || one.Version != 1 {
				t.Errorf("%v: versions %d and %d", old, one.Version, two.Version)
			}
		}
	})
}

// TestVersion_NoLostUpdates: many read and write, each again until it is not stale.
func TestVersion_NoLostUpdates(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for done := 0; done < 5; {
					var a Account
					err := db.Take(&a, mine.ID).Error
					if err == nil {
						err = db.Model(&a).Update("balance", a.Balance+1).Error
					}
					switch {
					case err == nil:
						done++
					case !errors.Is(err, gormlock.ErrStale):
						t.Errorf("Update: %v", err)
						return
					}
				}
			})
		}
		all.Wait()
		if ok(t, "Take", db.Take(&mine, mine.ID).Error); mine.Balance != 50 || mine.Version != 41 {
			t.Errorf("balance %d in version %d, want 50 in 41", mine.Balance, mine.Version)
		}
	})
}

func TestVersion_Associations(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		a := Account{Name: "a", Notes: []Note{{}, {}}}
		ok(t, "Create", db.Create(&a).Error)
		if a.Notes[1].Version == nil || *a.Notes[1].Version != 1 {
			t.Fatalf("a new note has version %v", a.Notes[1].Version)
		}
		ok(t, "Append", db.Model(&a).Association("Notes").Append(&Note{}))
		var notes []Note
		ok(t, "Find", db.Find(&notes).Error)
		if len(notes) != 3 || *notes[2].Version != 1 {
			t.Fatalf("notes %+v", notes)
		}
		stale := notes[2]
		ok(t, "Update", db.Model(&notes[2]).Update("account_id", a.ID).Error)
		v := *stale.Version - 1
		stale.Version = &v
		want(t, "Update", db.Model(&stale).Update("account_id", a.ID).Error, gormlock.ErrStale)
		want(t, "FullSaveAssociations", db.Session(&gorm.Session{FullSaveAssociations: true}).Updates(&a).Error, gorm.ErrNotImplemented)
	})
}

func TestVersion_WithoutThePlugin(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Account{}, &Note{}))
		a := Account{Model: gorm.Model{ID: 1}}
		want(t, "Create", db.Create(&a).Error, gormlock.ErrNotRegistered)
		want(t, "Update", db.Model(&a).Update("balance", 5).Error, gormlock.ErrNotRegistered)
		want(t, "Delete", db.Delete(&a).Error, gormlock.ErrNotRegistered)
		want(t, "Delete for good", db.Unscoped().Delete(&a).Error, gormlock.ErrNotRegistered)
		ok(t, "Use", db.Use(gormlock.New(nil))) // no Locker is needed
		a = Account{}
		ok(t, "Create", db.Create(&a).Error)
		ok(t, "Update", db.Model(&a).Update("balance", 5).Error)
		dry := db.Session(&gorm.Session{DryRun: true}).Model(&a).Update("balance", 6)
		if sql := dry.Statement.SQL.String(); dry.Error != nil || strings.Count(sql, "version") != 3 {
			t.Errorf("DryRun: %s, %v", sql, dry.Error)
		}
		ok(t, "Update after DryRun", db.Model(&a).Update("balance", 7).Error)
	})
}
