package optimistic_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
	"github.com/onelane/onelane/gormlock/stock"
)

// TestVersion_OtherCondition: an update or a Save that a condition keeps from its row must not pass for done, and says why.
func TestVersion_OtherCondition(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		poor := db.Where("balance > ?", 10).Session(&gorm.Session{})
		for name, err := range map[string]error{
			"Update": poor.Model(&mine).Update("balance", 5).Error,
			"Save":   poor.Save(&mine).Error,
			"slice":  poor.Save([]*Account{&mine}).Error,
			"Delete": poor.Delete(&mine).Error,
		} {
			want(t, name, err, optimistic.ErrStale)
			if err != nil && !strings.Contains(err.Error(), "match the other conditions") {
				t.Errorf("%s: %v", name, err)
			}
		}
		wantVersion(t, "the model", mine.Version, 1)
		ok(t, "without the condition", db.Model(&mine).Update("balance", 5).Error)
	})
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
	"Updates, a copy": func(db *gorm.DB, a *Account) error {
		b := *a
		b.Balance = 5
		return db.Model(a).Updates(b).Error
	},
	"version in a map": func(db *gorm.DB, a *Account) error {
		return db.Model(a).Updates(map[string]any{"balance": 5, "version": a.Version}).Error
	},
}

// TestVersion_StaleWritesFail: a write based on an old read is ErrStale and changes nothing; one on
// the newest is done.
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
			want(t, name+", stale", err, optimistic.ErrStale)
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
		"softly":                     func(db *gorm.DB, a *Account) error { return db.Delete(a).Error },
		"for good":                   func(db *gorm.DB, a *Account) error { return db.Unscoped().Delete(a).Error },
		"by Model":                   func(db *gorm.DB, a *Account) error { return db.Model(a).Delete(&Account{}).Error },
		"a slice":                    func(db *gorm.DB, a *Account) error { return db.Delete(&[]Account{*a}).Error },
		"with an OR at a line break": func(db *gorm.DB, a *Account) error { return db.Where("balance = 0 OR\nbalance > 0").Delete(a).Error },
		"with Where":                 func(db *gorm.DB, a *Account) error { return db.Where("balance = 0").Or("balance > 0").Delete(a).Error },
	}
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		for name, del := range deletes {
			mine, theirs := twice(t, db)
			ok(t, "Update", db.Model(&mine).Update("balance", 5).Error)
			want(t, name+", stale", del(db, &theirs), optimistic.ErrStale)
			ok(t, name+", stale: the row is there", db.Take(&Account{}, mine.ID).Error)
			ok(t, name, del(db, &mine))
			want(t, name, db.Take(&Account{}, mine.ID).Error, gorm.ErrRecordNotFound)
			want(t, name+" again", del(db, &mine), optimistic.ErrStale)
			want(t, name+", then Update", db.Model(&mine).Update("balance", 6).Error, optimistic.ErrStale)
			want(t, name+", then Save", db.Save(&mine).Error, optimistic.ErrStale)
		}
	})
}

// TestVersion_SoftDelete: a soft delete changes the row, so that others cannot bring it back
// unawares.
func TestVersion_SoftDelete(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		for name, del := range map[string]func(a *Account) error{
			"of the model":  func(a *Account) error { return db.Delete(a).Error },
			"by conditions": func(a *Account) error { defer func() { a.Version++ }(); return db.Delete(&Account{}, a.ID).Error },
		} {
			mine, theirs := twice(t, db)
			ok(t, name, del(&mine))
			want(t, name+", stale Save", db.Unscoped().Save(&theirs).Error, optimistic.ErrStale)
			want(t, name+", stale Delete", db.Unscoped().Delete(&theirs).Error, optimistic.ErrStale)
			want(t, name, db.Take(&Account{}, mine.ID).Error, gorm.ErrRecordNotFound)
			ok(t, name+", brought back", db.Unscoped().Model(&mine).Update("deleted_at", nil).Error)
			ok(t, name+", again", db.Delete(&mine).Error)
			ok(t, name+", for good", db.Unscoped().Delete(&mine).Error)
		}
	})
}

// TestVersion_Refused has the writes that cannot be right. They change nothing.
func TestVersion_Refused(t *testing.T) {
	t.Parallel()
	one := int64(1)
	type part struct {
		Balance int64
		Version *int64
	}
	byID := func(db *gorm.DB, a *Account) *gorm.DB { return db.Model(&Account{}).Where("id = ?", a.ID) }
	writes := map[string]struct {
		write func(db *gorm.DB, a *Account) error
		err   error
	}{
		"a version in a map": {func(db *gorm.DB, a *Account) error {
			return byID(db, a).Updates(map[string]any{"balance": 7, "version": 1}).Error
		}, gorm.ErrInvalidData},
		"a float": {func(db *gorm.DB, a *Account) error {
			return db.Model(a).Updates(map[string]any{"balance": 7, "version": 1.0}).Error
		}, gorm.ErrInvalidData},
		"an expression": {func(db *gorm.DB, a *Account) error {
			return db.Model(a).Update("version", gorm.Expr("version + 5")).Error
		}, gorm.ErrInvalidData},
		"another version": {func(db *gorm.DB, a *Account) error {
			return db.Model(a).Update("version", 7).Error
		}, gorm.ErrInvalidData},
		"a version 0 in a map": {func(db *gorm.DB, a *Account) error {
			return byID(db, a).Updates(map[string]any{"balance": 7, "version": 0}).Error
		}, gorm.ErrInvalidData},
		"a version in another struct": {func(db *gorm.DB, a *Account) error {
			return byID(db, a).Updates(part{7, &one}).Error
		}, gorm.ErrInvalidData},
		"a version in a Set": {func(db *gorm.DB, a *Account) error {
			set := clause.Set{{Column: clause.Column{Name: "version"}, Value: 7}}
			return db.Model(a).Clauses(set).Updates(map[string]any{}).Error
		}, gorm.ErrInvalidData},
		"a version without a key": {func(db *gorm.DB, a *Account) error {
			return db.Where("id = ?", a.ID).Updates(&Account{Balance: 7, Version: a.Version}).Error
		}, gorm.ErrPrimaryKeyRequired},
		"a delete without a key": {func(db *gorm.DB, a *Account) error {
			return db.Where("id = ?", a.ID).Delete(&Account{Version: a.Version}).Error
		}, gorm.ErrPrimaryKeyRequired},
		"a copy":          {func(db *gorm.DB, a *Account) error { return db.Updates(*a).Error }, gorm.ErrInvalidValue},
		"a copy as Model": {func(db *gorm.DB, a *Account) error { return db.Model(*a).Update("name", "b").Error }, gorm.ErrInvalidValue},
		"a deleted copy":  {func(db *gorm.DB, a *Account) error { return db.Delete(*a).Error }, gorm.ErrInvalidValue},
		"a created copy":  {func(db *gorm.DB, a *Account) error { return db.Create(Account{}).Error }, gorm.ErrInvalidValue},
		"generic Updates": {func(db *gorm.DB, a *Account) error {
			_, err := gorm.G[Account](db).Where("id = ?", a.ID).Updates(db.Statement.Context, *a)
			return err
		}, gorm.ErrInvalidValue},
		"two versions": {func(db *gorm.DB, a *Account) error {
			return db.Create(&twoVersions{}).Error
		}, gorm.ErrInvalidField},
		"a version that is not written": {func(db *gorm.DB, a *Account) error {
			return db.Create(&readOnlyVersion{}).Error
		}, gorm.ErrInvalidField},
	}
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, theirs := twice(t, db)
		for name, w := range writes {
			want(t, name, w.write(db, &theirs), w.err)
			if theirs.Version != 1 || theirs.Balance != 10 && theirs.Balance != 7 {
				t.Fatalf("%s: the model is %+v", name, theirs)
			}
			var rows []Account
			ok(t, "Find", db.Find(&rows).Error)
			if len(rows) != 1 || rows[0].Version != mine.Version || rows[0].Balance != mine.Balance || rows[0].Name != mine.Name {
				t.Fatalf("%s: the rows are %+v", name, rows)
			}
		}
		_, err := gorm.G[Account](db).Where("id = ?", mine.ID).Updates(db.Statement.Context, Account{Balance: 8})
		ok(t, "generic Updates by conditions", err)
		_, err = gorm.G[Account](db).Where("id = ?", mine.ID).Update(db.Statement.Context, "balance", 9)
		ok(t, "generic Update", err)
		want(t, "what was read before", db.Model(&mine).Update("balance", 7).Error, optimistic.ErrStale)
	})
}

type twoVersions struct {
	ID   uint
	A, B optimistic.Version
}

type readOnlyVersion struct {
	ID      uint
	Version optimistic.Version `gorm:"->"`
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
		want(t, "update", db.Model(&mine).Update("taken", true).Error, optimistic.ErrStale)
		want(t, "delete", db.Delete(&mine).Error, optimistic.ErrStale)
		want(t, "in a block", db.Transaction(func(tx *gorm.DB) error { return tx.Model(&mine).Update("taken", true).Error }), optimistic.ErrStale)
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
		want(t, "keys with a 0 in them", db.Model(zeros[:2]).Update("taken", true).Error, optimistic.ErrStale)
		want(t, "a key with a 0 in it", db.Model(&zeros[0]).Update("taken", true).Error, optimistic.ErrStale)
		if ok(t, "Count", db.Model(&Seat{}).Where("taken = ?", true).Count(&taken).Error); taken != 1 {
			t.Fatalf("%d seats are taken, want one", taken)
		}
		want(t, "not a pointer", db.Create(Seat{Row: 9, Number: 9}).Error, gorm.ErrInvalidValue)
	})
}

// TestVersion_BatchInBlock: a stale batch writes nothing, and the block can go on.
func TestVersion_BatchInBlock(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Create", db.Create(&[]Account{{Name: "a", Balance: 10}, {Name: "b", Balance: 10}}).Error)
		var mine []Account
		ok(t, "Find", db.Order("id").Find(&mine).Error)
		ok(t, "others", db.Model(&Account{}).Where("name = ?", "b").Update("name", "c").Error)
		err := db.Transaction(func(tx *gorm.DB) error {
			take := func() error {
				return tx.Model(&mine).Update("balance", gorm.Expr("balance - 1")).Error
			}
			want(t, "stale Update", take(), optimistic.ErrStale)
			want(t, "stale Delete", tx.Delete(&mine).Error, optimistic.ErrStale)
			wantVersion(t, "stale", mine[0].Version, 1)
			if err := tx.Order("id").Find(&mine).Error; err != nil {
				return err
			}
			return take()
		})
		ok(t, "Transaction", err)
		wantRow(t, "first", db, mine[0].ID, 9, 2)
		wantRow(t, "second", db, mine[1].ID, 9, 3)
		twins := []Account{mine[0], mine[0]}
		twins[1].Version = 7
		want(t, "a row in two versions", db.Model(&twins).Update("balance", 1).Error, optimistic.ErrStale)
	})
}

// TestVersion_TableWithoutModel shows the limit: the column cannot be known.
func TestVersion_TableWithoutModel(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		ok(t, "Table", db.Table("accounts").Where("id = ?", mine.ID).Update("balance", 5).Error)
		wantRow(t, "Table", db, mine.ID, 5, 1)
		ok(t, "Table and Model", db.Table("accounts").Model(&Account{}).Where("id = ?", mine.ID).Update("balance", 6).Error)
		wantRow(t, "Table and Model", db, mine.ID, 6, 2)
		want(t, "stale", db.Table("accounts").Model(&mine).Update("balance", 7).Error, optimistic.ErrStale)
	})
}

// TestVersion_ByConditions: the statement checks no version, and what others have read is stale.
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
	}
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		for name, write := range writes {
			mine, _ := twice(t, db)
			ok(t, name, write(db, mine.ID))
			want(t, name+" makes stale", db.Model(&mine).Update("balance", 9).Error, optimistic.ErrStale)
			if ok(t, "Take", db.Take(&mine, mine.ID).Error); mine.Balance != 5 || mine.Version != 2 {
				t.Errorf("%s: %+v", name, mine)
			}
		}
		none := db.Model(&Account{}).Where("id = ?", 0).Update("balance", 5)
		if none.Error != nil || none.RowsAffected != 0 {
			t.Errorf("no such row: %v", none.Error)
		}
		want(t, "no condition", db.Updates(&Account{Balance: 5}).Error, gorm.ErrMissingWhereClause)
		want(t, "no condition", db.Delete(&Account{}).Error, gorm.ErrMissingWhereClause)
		mine, _ := twice(t, db)
		want(t, "not enough is not stale", decrement(db.Model(&mine), "balance", 11), stock.ErrInsufficient)
	})
}

// TestVersion_NotRead: a model that has no version is stale, unless its row has none either.
func TestVersion_NotRead(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		var part Account
		ok(t, "Select", db.Select("id", "balance").Take(&part, mine.ID).Error)
		want(t, "Update", db.Model(&part).Update("balance", 5).Error, optimistic.ErrStale)
		for _, old := range []any{nil, 0} {
			ok(t, "Exec", db.Exec("UPDATE accounts SET version = ? WHERE id = ?", old, mine.ID).Error)
			var one, two Account
			ok(t, "Take", errors.Join(db.Take(&one, mine.ID).Error, db.Take(&two, mine.ID).Error))
			ok(t, "Update", db.Model(&one).Update("balance", 5).Error)
			want(t, "stale", db.Model(&two).Update("balance", 6).Error, optimistic.ErrStale)
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
					case !errors.Is(err, optimistic.ErrStale):
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

func TestVersion_WithoutThePlugin(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		a := Account{Model: gorm.Model{ID: 1}}
		want(t, "Create", db.Create(&a).Error, gormlock.ErrNotRegistered)
		want(t, "Update", db.Model(&a).Update("balance", 5).Error, gormlock.ErrNotRegistered)
		want(t, "Delete", db.Delete(&a).Error, gormlock.ErrNotRegistered)
		want(t, "Delete for good", db.Unscoped().Delete(&a).Error, gormlock.ErrNotRegistered)
		row := "INSERT INTO accounts (id, balance, version) VALUES (99, 10, 7)"
		ok(t, "INSERT", db.Exec(row).Error)
		unscoped, old := db.Unscoped().Session(&gorm.Session{}), Account{Model: gorm.Model{ID: 99}, Version: 3}
		for name, err := range map[string]error{
			"Save":   unscoped.Save(&old).Error,
			"slice":  unscoped.Save(&[]Account{old}).Error,
			"Create": unscoped.Create(&[]Account{{}}).Error,
			"Note":   unscoped.Create(&Note{AccountID: 99, Version: &old.Version}).Error,
		} {
			want(t, "Unscoped, "+name, err, gormlock.ErrNotRegistered)
		}
		v := optimistic.Version(7)
		ok(t, "a condition", db.Where("version = ?", v).Where(map[string]any{"version": &v}).Take(&old, 99).Error)
		wantRow(t, "Unscoped", db, 99, 10, 7)
		ok(t, "DELETE", db.Exec("DELETE FROM accounts").Error)
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

// TestVersion_ReadAgain: after ErrStale, a read with ForUpdate gets the new row in the same
// transaction. Another read gets the old one of the snapshot on MySQL and MariaDB.
func TestVersion_ReadAgain(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" {
			return // others cannot write meanwhile
		}
		mine, theirs := twice(t, db)
		err := db.Transaction(func(tx *gorm.DB) error {
			ok(t, "Take", tx.Take(&mine, mine.ID).Error)
			ok(t, "others", db.Model(&theirs).Update("balance", 1000).Error)
			err := tx.Model(&mine).Update("balance", 11).Error
			if changed, found := errors.AsType[*gomysql.MySQLError](err); found && changed.Number == 1020 {
				return err
			}
			want(t, "Update", err, optimistic.ErrStale)
			ok(t, "ForUpdate", tx.Scopes(gormlock.ForUpdate()).Take(&mine, mine.ID).Error)
			return tx.Model(&mine).Update("balance", mine.Balance+1).Error
		})
		// MariaDB rolls the transaction back since 11.6.2: nothing can be read again in it.
		if changed, found := errors.AsType[*gomysql.MySQLError](err); found && changed.Number == 1020 {
			wantRow(t, "rolled back", db, mine.ID, 1000, 2)
			return
		}
		ok(t, "Transaction", err)
		wantRow(t, "read again", db, mine.ID, 1001, 3)
	})
}
