package gormlock

import (
	"context"
	"database/sql"

	"gorm.io/gorm"
)

// OnBegin calls fn before each transaction that begins in the database.
func OnBegin(db *gorm.DB, fn func()) {
	p := poolOf(db.ConnPool)
	p.ConnPool = &beginHook{p.ConnPool.(*sql.DB), fn}
}

type beginHook struct {
	*sql.DB
	fn func()
}

func (h *beginHook) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	h.fn()
	return h.DB.BeginTx(ctx, opts)
}

func (h *beginHook) GetDBConn() (*sql.DB, error) { return h.DB, nil }
