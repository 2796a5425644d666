package gormlock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"
)

// AfterCommit calls fn once, after the COMMIT of the transaction that tx is in is known to have happened:
//
//	err := gormlock.AfterCommit(tx, func(ctx context.Context) { events.Publish(ctx, "order paid") })
//
// It works in every transaction of a database with the plugin, guarded or not. In a nested block fn waits for the
// outermost COMMIT. It is not called after a rollback, after [ErrCommitUnknown], or if a savepoint that was made by
// gorm before AfterCommit was rolled back.
//
// The functions of a transaction are called in the order of their AfterCommit, by the goroutine that commits, before
// Commit and [Transaction] return. The locks are released before, so a function that hangs keeps nobody but its caller
// waiting. The next holder may be at work already: a function whose order matters compares fencing tokens, see [Token].
// A panic undoes nothing: the other functions are called, then it goes up to the caller.
//
// ctx is the context that the transaction began with, and guards nothing. That of tx has ended. Outside a transaction
// the error matches [ErrNoTransaction], after its end sql.ErrTxDone.
func AfterCommit(tx *gorm.DB, fn func(ctx context.Context)) error {
	t, open := transactionOf(tx.Statement.ConnPool)
	switch {
	case !open:
		return fmt.Errorf("gormlock: AfterCommit: %w", ErrNoTransaction)
	case t == nil:
		return fmt.Errorf("gormlock: AfterCommit: %w", ErrUnmanagedTransaction)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := cmp.Or(t.usable(), t.gone); err != nil {
		return fmt.Errorf("gormlock: AfterCommit: %w", err)
	}
	t.afterCommit = append(t.afterCommit, commitHook{call: fn})
	return nil
}

// commitHook is a function to call after COMMIT, or the place of a savepoint among them.
type commitHook struct {
	call      func(ctx context.Context)
	savepoint string
}

// Commit implements gorm.TxCommitter. It calls the functions of AfterCommit when the locks are released.
func (t *transaction) Commit() error {
	err := t.commit()
	t.versions.ended(err)
	if err != nil {
		return err
	}
	t.mu.Lock()
	hooks := t.afterCommit
	t.afterCommit = nil
	t.mu.Unlock()
	callAll(withoutGuards(t.ctx), hooks)
	return nil
}

// callAll calls the hooks in order, also those after one that panics.
func callAll(ctx context.Context, hooks []commitHook) {
	if len(hooks) == 0 {
		return
	}
	defer callAll(ctx, hooks[1:])
	if hooks[0].call != nil {
		hooks[0].call(ctx)
	}
}

// savepoint runs before a raw statement of t, which may be nil; err says why it must not be sent. It notes where a
// SAVEPOINT stands among the functions of AfterCommit, and drops those behind it on ROLLBACK TO.
//
// A savepoint needs no lock, so it is sent even if its guard comes too late. GORM hides the error of a SAVEPOINT on
// SQLite and PostgreSQL and runs the block all the same: what the block writes must be undone with it.
func (t *transaction) savepoint(db *gorm.DB, err error) {
	query := db.Statement.SQL.String()
	name, rollback := savepointIn(query)
	if t == nil || name == "" {
		return
	}
	if rollback && db.Statement.Context.Err() != nil {
		db.Statement.Context = t.ctx // the block's has ended, and what it wrote must not stay
	}
	if err != nil {
		_, failed := db.Statement.ConnPool.ExecContext(db.Statement.Context, query)
		if noteSavepoint(db, failed); failed != nil {
			return
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !rollback {
		t.afterCommit = append(t.afterCommit, commitHook{savepoint: name})
		return
	}
	for i, h := range slices.Backward(t.afterCommit) {
		if h.savepoint == name {
			t.afterCommit = t.afterCommit[:i+1] // it still stands
			return
		}
	}
}

// savepointIn returns the name in a SAVEPOINT or a ROLLBACK TO; "" if query is neither.
func savepointIn(query string) (name string, rollback bool) {
	word, _, _ := strings.Cut(query, " ")
	switch strings.ToUpper(word) {
	case "SAVEPOINT":
	case "ROLLBACK":
		rollback = true
	default:
		return "", false
	}
	words := strings.Fields(strings.ToLower(query))
	if rollback && !slices.Contains(words, "to") {
		return "", false
	}
	return words[len(words)-1], rollback
}
