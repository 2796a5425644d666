package optimistic_test

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/onelane/onelane/gormlock/optimistic"
)

// Editor is a column that each update fills in, as audit columns and other plugins do it.
type Editor string

type editorKey struct{}

// UpdateClauses implements schema.UpdateClausesInterface.
func (Editor) UpdateClauses(f *schema.Field) []clause.Interface {
	return []clause.Interface{setEditor{f}}
}

type setEditor struct{ field *schema.Field }

func (setEditor) Name() string               { return "" }
func (setEditor) Build(clause.Builder)       {}
func (setEditor) MergeClause(*clause.Clause) {}
func (c setEditor) ModifyStatement(s *gorm.Statement) {
	by, _ := s.Context.Value(editorKey{}).(string)
	s.SetColumn(c.field.DBName, by, true)
}

// Audited has a column beside its version that updates fill in.
type Audited struct {
	ID      uint
	Balance int64
	By      Editor `gorm:"size:64"`
	Version optimistic.Version
	Deleted gorm.DeletedAt
}

// TestVersion_OtherUpdateClauses: a version leaves what the clauses of other fields assign.
func TestVersion_OtherUpdateClauses(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Audited{}))
		db = db.WithContext(context.WithValue(t.Context(), editorKey{}, "ann"))
		m := Audited{Balance: 5}
		ok(t, "Create", db.Create(&m).Error)
		for name, update := range map[string]func() error{
			"Update":      func() error { return db.Model(&m).Update("balance", 4).Error },
			"a map":       func() error { return db.Model(&m).Updates(map[string]any{"balance": 3}).Error },
			"a struct":    func() error { return db.Model(&m).Updates(Audited{Balance: 2}).Error },
			"Save":        func() error { return db.Save(&m).Error },
			"a condition": func() error { return db.Model(&Audited{}).Where("id = ?", m.ID).Update("balance", 1).Error },
		} {
			ok(t, "by nobody", db.Model(&m).UpdateColumn("by", "").Error)
			ok(t, name, update())
			ok(t, "Take", db.Take(&m, m.ID).Error)
			if m.By != "ann" {
				t.Errorf("%s: the row is by %q", name, m.By)
			}
		}
		old := m
		ok(t, "Update", db.Model(&m).Update("balance", 9).Error)
		want(t, "an old model", db.Model(&old).Update("balance", 8).Error, optimistic.ErrStale)
	})
}

// TestVersion_StaleRowsAffected: a stale write of several rows wrote none. So says gorm.WithResult.
func TestVersion_StaleRowsAffected(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		rows := []Account{{Name: "a"}, {Name: "b"}, {Name: "c"}}
		ok(t, "Create", db.Create(&rows).Error)
		first := rows[0]
		ok(t, "Update", db.Model(&first).Update("balance", 1).Error)
		for name, c := range map[string]struct {
			write func(tx *gorm.DB) *gorm.DB
			n     int64
		}{
			"Update": {func(tx *gorm.DB) *gorm.DB { return tx.Model(&rows).Update("balance", 2) }, 0},
			"Save":   {func(tx *gorm.DB) *gorm.DB { return tx.Save(&rows) }, 0},
			"fresh":  {func(tx *gorm.DB) *gorm.DB { return tx.Save([]*Account{&first}) }, 1},
		} {
			result := gorm.WithResult()
			tx := c.write(db.Clauses(result))
			if (c.n == 0) != errors.Is(tx.Error, optimistic.ErrStale) {
				t.Errorf("%s: %v", name, tx.Error)
			}
			if tx.RowsAffected != c.n || result.RowsAffected != c.n {
				t.Errorf("%s: %d rows, and %d in the result", name, tx.RowsAffected, result.RowsAffected)
			}
		}
	})
}
