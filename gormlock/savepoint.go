package gormlock

import (
	"fmt"

	"gorm.io/gorm"
)

// sendSavepoint runs before raw SQL. It makes sure that a SAVEPOINT or ROLLBACK TO is sent.
// GORM hides their errors on SQLite and PostgreSQL and goes on, so what a block wrote would stay.
// The same holds if the gorm.DB of the block has an error already. Neither needs a lock; refused is
// why the statement itself is not sent.
func sendSavepoint(db *gorm.DB, refused error) {
	t, _ := transactionOf(db.Statement.ConnPool)
	if t == nil || db.DryRun {
		return
	}
	query := db.Statement.SQL.String()
	verb, name := savepointIn(query)
	if name == "" || verb == "RELEASE" {
		return
	}
	if verb == "ROLLBACK" && db.Statement.Context.Err() != nil {
		db.Statement.Context = t.ctx // the block's has ended
	}
	if refused != nil {
		_, _ = db.Statement.ConnPool.ExecContext(db.Statement.Context, query)
	}
}

// noteSavepointLocked notes a SAVEPOINT, a RELEASE or a ROLLBACK that was sent and returned err. If a
// ROLLBACK TO failed, what it should have undone would be committed with the rest, so the
// transaction is given up.
func (t *transaction) noteSavepointLocked(verb, name string, err error) {
	switch {
	case verb == "ROLLBACK" && err != nil:
		t.failLocked(fmt.Errorf("gormlock: ROLLBACK TO %s failed, so the transaction is rolled back: %w", name, err))
	case verb == "ROLLBACK":
		t.undone.rolledBack(name)
	case verb == "RELEASE" && err == nil:
		t.undone.released(name)
	case name != "" && err == nil:
		t.undone.add(undoEntry{savepoint: name})
	}
}
