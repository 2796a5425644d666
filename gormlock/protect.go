package gormlock

import (
	"fmt"
	"strings"
	"unicode"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// Protect makes every create, update and delete on the tables of these models need a guard,
// whatever its key. Without a guard the error is [ErrUnguarded]. Protect catches statements that
// drop the scopes of a block, such as those of Session(NewDB) and of the generics API. Protect
// knows a table by model and by name, whatever the case, the quotes, the alias and the database
// before it. Raw SQL is not checked.
func Protect(models ...any) Option {
	return pluginOption(func(p *plugin) { p.protect = append(p.protect, models...) })
}

// tablesOf names the tables of models.
func tablesOf(db *gorm.DB, models []any) (map[string]bool, error) {
	tables := make(map[string]bool, len(models))
	for _, m := range models {
		stmt := &gorm.Statement{DB: db}
		if err := stmt.Parse(m); err != nil {
			return nil, fmt.Errorf("gormlock: Protect(%T): %w", m, err)
		}
		tables[tableName(stmt.Schema.Table)] = true
	}
	return tables, nil
}

// quotes are around names in one database or another.
const quotes = "`\"'[]"

// tableName is a table's name without the database that it is in, and without quotes.
func tableName(table string) string {
	return strings.ToLower(strings.Trim(table[strings.LastIndex(table, ".")+1:], quotes+" "))
}

// namesIn returns the words in SQL that may be names.
func namesIn(sql string) []string {
	return strings.FieldsFunc(strings.ToLower(sql), func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune(quotes+".,()=", r)
	})
}

// tablesIn returns the names that a write may mean by its table. These may be too many: of several
// joined tables it returns each.
func tablesIn(s *gorm.Statement) []string {
	names := []string{tableName(s.Table)}
	if s.Schema != nil {
		names = append(names, tableName(s.Schema.Table))
	}
	clauseTable := func(table clause.Table) {
		names = append(names, tableName(table.Name))
		if table.Raw {
			names = append(names, namesIn(table.Name)...)
		}
	}
	for _, c := range s.Clauses { // may name another table
		switch e := c.Expression.(type) {
		case clause.Insert:
			clauseTable(e.Table)
		case clause.Update:
			clauseTable(e.Table)
		case clause.Delete: // DELETE stocks FROM items JOIN stocks …
			names = append(names, namesIn(e.Modifier)...)
		case clause.From:
			for _, table := range e.Tables {
				clauseTable(table)
			}
		}
	}
	if s.TableExpr == nil {
		return names
	}
	written := &gorm.Statement{DB: s.DB}
	s.TableExpr.Build(written)
	return append(names, namesIn(written.SQL.String())...)
}
