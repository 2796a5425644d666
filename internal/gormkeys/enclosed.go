package gormkeys

import (
	"slices"

	"gorm.io/gorm/clause"
)

// Enclosed writes conditions in parentheses. GORM writes none around a text with an OR beside a
// line break or a tab. A condition that is added would then hold for a part of the text only.
type Enclosed []clause.Expression

// Build implements clause.Expression.
func (e Enclosed) Build(b clause.Builder) {
	_ = b.WriteByte('(')
	clause.Where{Exprs: slices.Clone(e)}.Build(b) // which sorts them
	_ = b.WriteByte(')')
}
