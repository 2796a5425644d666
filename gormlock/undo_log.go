package gormlock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"

	"gorm.io/gorm"
)

// undoLog is what the end of a transaction decides about: the functions of AfterCommit and of
// OnRollback. Its savepoints stand between them, for ROLLBACK TO.
type undoLog struct {
	mu      sync.Mutex
	entries []undoEntry
	most    int // when there are more, those that nobody needs are forgotten
}

const fewEntries = 1024

// undoEntry is one of its fields.
type undoEntry struct {
	savepoint   string
	afterCommit func(ctx context.Context)
	onRollback  func()
	needed      func() bool // of onRollback
}

func (l *undoLog) add(e undoEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) > max(l.most, fewEntries) {
		l.entries = slices.DeleteFunc(l.entries, func(e undoEntry) bool { return e.needed != nil && !e.needed() })
		l.most = 2 * len(l.entries)
	}
	if e.savepoint == "" || len(l.entries) > 0 {
		l.entries = append(l.entries, e)
	}
}

func (l *undoLog) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries) == 0
}

// rolledBack undoes what came after a savepoint, or all.
func (l *undoLog) rolledBack(savepoint string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range slices.Backward(l.entries) {
		if e.savepoint != "" && e.savepoint == savepoint {
			return // it still stands
		}
		if e.onRollback != nil {
			e.onRollback()
		}
		l.entries = l.entries[:i]
	}
}

// released forgets a savepoint and those made after it. The rest stays.
func (l *undoLog) released(savepoint string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range slices.Backward(l.entries) {
		if e.savepoint != "" {
			l.entries = slices.Delete(l.entries, i, i+1)
		}
		if e.savepoint == savepoint {
			return
		}
	}
}

// committed ends the log and returns the functions to call.
func (l *undoLog) committed() (all []func(ctx context.Context)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.afterCommit != nil {
			all = append(all, e.afterCommit)
		}
	}
	l.entries = nil
	return all
}

// sendSavepoint runs before a statement. It makes sure that a SAVEPOINT or ROLLBACK TO is sent.
// GORM hides their errors on SQLite and PostgreSQL and goes on, so what a block wrote would stay.
// The same holds if the gorm.DB of the block has an error already. Neither needs a lock; refused is
// why the statement itself is not sent.
func sendSavepoint(db *gorm.DB, op operation, refused error) {
	t, _ := transactionOf(db.Statement.ConnPool)
	if t == nil || op.name != "raw" || db.DryRun {
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
		_, err := db.Statement.ConnPool.ExecContext(db.Statement.Context, query)
		noteSavepoint(db, err)
	}
}

// savepointNoted wraps GORM's callback of raw statements.
func savepointNoted(fn func(*gorm.DB)) func(*gorm.DB) {
	return func(db *gorm.DB) {
		if db.Error == nil {
			defer func() { noteSavepoint(db, db.Error) }()
		}
		fn(db)
	}
}

// noteSavepoint notes a SAVEPOINT, a RELEASE or a ROLLBACK that was sent and returned err. If a
// ROLLBACK TO failed, what it should have undone would be committed with the rest, so the
// transaction is given up.
func noteSavepoint(db *gorm.DB, err error) {
	t, _ := transactionOf(db.Statement.ConnPool)
	if t == nil || db.DryRun {
		return
	}
	switch verb, name := savepointIn(db.Statement.SQL.String()); {
	case verb == "ROLLBACK" && err != nil:
		t.GiveUp(fmt.Errorf("gormlock: ROLLBACK TO %s failed, so the transaction is rolled back: %w", name, err))
	case verb == "ROLLBACK":
		t.undone.rolledBack(name)
	case verb == "RELEASE" && err == nil:
		t.undone.released(name)
	case name != "" && err == nil:
		t.undone.add(undoEntry{savepoint: name})
	}
}

// savepointIn returns the name in a SAVEPOINT, a RELEASE or a ROLLBACK TO, in lower case and
// without quotes. A ROLLBACK of the whole transaction has none.
func savepointIn(query string) (verb, name string) {
	verb, rest := firstWord(query)
	switch verb {
	case "SAVEPOINT":
	case "RELEASE":
		rest = afterWords(rest, "SAVEPOINT")
	case "ROLLBACK":
		rest = afterWords(rest, "WORK", "TRANSACTION")
		if next, _ := firstWord(rest); next != "TO" {
			return verb, ""
		}
		rest = afterWords(afterWords(rest, "TO"), "SAVEPOINT")
	default:
		return "", ""
	}
	return verb, strings.ToLower(nameIn(rest))
}

// afterWords returns text without its first word, if that is one of these.
func afterWords(text string, words ...string) string {
	word, rest := firstWord(text)
	if slices.Contains(words, word) && strings.IndexAny(rest, nameChars) != 0 {
		return rest
	}
	return text
}

// nameChars are those that may follow letters in a name.
const nameChars = "_$0123456789"

// nameIn returns the name that text begins with, after comments, and without quotes.
func nameIn(text string) string {
	_, rest := firstWord(text)
	before := strings.TrimRightFunc(text[:len(text)-len(rest)], unicode.IsLetter)
	text = text[len(before):]
	if text == "" {
		return ""
	}
	if i := strings.IndexByte("\"`'[", text[0]); i >= 0 {
		name, _, _ := strings.Cut(text[1:], "\"`']"[i:i+1])
		return name
	}
	if end := strings.IndexAny(text, " \t\r\n\f\v;-/#"); end >= 0 {
		return text[:end]
	}
	return text
}

// AfterCommit calls fn once, when the COMMIT of tx's transaction is known to have happened:
//
//	err := gormlock.AfterCommit(tx, func(ctx context.Context) { cache.Delete(ctx, "order:7") })
//
// If the process dies after COMMIT, or COMMIT gets no answer ([ErrCommitUnknown]), fn is never
// called. If the COMMIT happened, a later call of [Once] returns the stored result and does not
// call fn either. So write an event that must not be lost into a row of the same transaction (an
// outbox).
//
// It works in every transaction of a database with the plugin, guarded or not. In a nested block fn
// waits for the outermost COMMIT. fn is not called after a rollback, or if GORM made a savepoint
// before AfterCommit and rolled back to it.
//
// The functions of a transaction are called in the order of their AfterCommit, by the goroutine
// that commits, before Commit and [Transaction] return. The locks are released before, so a
// function that hangs keeps nobody but its caller waiting. The next holder may be at work already:
// a function whose order matters compares fencing tokens, see [Token]. A panic undoes nothing. The
// other functions are called, and then the panic goes up to the caller.
//
// ctx is the context that the transaction began with, and guards nothing. The context of tx has
// ended by then. With DryRun nothing is written, and fn is not called. Outside a transaction the
// error of AfterCommit matches [ErrNoTransaction]. After the end of the transaction it matches
// sql.ErrTxDone.
func AfterCommit(tx *gorm.DB, fn func(ctx context.Context)) error {
	if tx.DryRun { // GORM runs hooks, too
		return nil
	}
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
	t.undone.add(undoEntry{afterCommit: fn})
	return nil
}

// OnRollback implements gormkeys.Transaction.
func (t *transaction) OnRollback(undo func(), needed func() bool) {
	t.undone.add(undoEntry{onRollback: undo, needed: needed})
}

// Commit implements gorm.TxCommitter. It calls the functions of AfterCommit when the locks are
// released.
func (t *transaction) Commit() error {
	if err := t.commit(); err != nil {
		return err
	}
	callAll(withoutGuards(t.ctx), t.undone.committed())
	return nil
}

// callAll calls the functions in order, also those after one that panics.
func callAll(ctx context.Context, all []func(ctx context.Context)) {
	if len(all) == 0 {
		return
	}
	defer callAll(ctx, all[1:])
	all[0](ctx)
}
