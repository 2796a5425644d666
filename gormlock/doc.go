// Package gormlock puts GORM's statements and transactions under distributed locks: lock, BEGIN, …, COMMIT, unlock.
//
//	db.Use(gormlock.New(locker))
//
//	db.Scopes(gormlock.Guard("stock:42")).Transaction(func(tx *gorm.DB) error { … })
//	db.Model(&Stock{}).Scopes(gormlock.Guard("stock:42")).Where("sku = ?", 42).Update("left", gorm.Expr("left - 1"))
//
// A transaction that locks after its BEGIN, or unlocks before its COMMIT, reads what the holder before it is about to
// change: its snapshot is older than its lock, or the next holder's is older than its COMMIT. So the order is kept here
// and not in each handler. [Guard] is a scope, [WithGuard] carries the same in a context for what drops scopes, and
// [Transaction] is a block that is under the lock from its first line on.
//
// A guard is for what takes more than one statement: read, decide, write. Where one statement decides and writes, as
// [Decrement] does, the database needs no lock.
//
// # Guarantees
//
//   - The lock is had before BEGIN is sent and before the first snapshot, and no connection is taken while a guard
//     waits. It is held until the answer to the outermost COMMIT or ROLLBACK is known.
//   - If the answer to COMMIT is lost, the error is [ErrCommitUnknown], and the key stays locked until its lease runs out.
//   - If the lock is lost or the context ends before COMMIT, the transaction is rolled back, with an error that
//     matches core.ErrLost or the context's.
//   - Panics in blocks and hooks, and contexts that end, also in transactions by hand, roll back, then unlock.
//   - Where the database ends a guarded transaction by itself, as MySQL does in a deadlock and SQLite when a write is
//     interrupted, nothing is written after it, even if the block goes on.
//   - Several guards are all taken or none, in one order everywhere, so that two transactions do not wait for each other.
//   - A guard that cannot guard is an error, and nothing is sent: no plugin (but for [WithGuard]), a read outside a
//     transaction, a guard after BEGIN, a transaction that the plugin did not begin, a template without a value, the DryRun
//     of a write.
//   - With [Fenced], a holder that was overtaken commits nothing, whatever its lock says: its token must be the largest
//     that registered in the database, before the first read.
//   - [Once] commits at most once per key, whatever becomes of Redis or the process, and gives everybody the first
//     result, for as long as its row is kept.
//   - A write of a row that others changed since it was read is [ErrStale], where the model has a [Version]; [ForUpdate]
//     holds the row from the read on.
//   - [Table] is a core.Backend like Redis, on one row per key: one holder at a time, ends by the database's clock,
//     takeover of what is over, tokens that increase, seals.
//   - Of callers in one group ([Grouped]) each has its own result, and none is told success without a COMMIT. What a
//     function leaves behind does not run in the turn of another. It sees what was committed before it was called.
//   - Decrement never takes more than there is, with or without a lock. [SealWhenOut] seals only what was read again, under
//     the lock and after the outcome was known, and had nothing left.
//   - On SQLite a transaction whose COMMIT is rejected is rolled back; without a guard it stays open on its connection.
//
// # Does not guarantee
//
//   - What core does not: after a fail-over of Redis that lost the lock, and between the last look at the lock and the
//     COMMIT, two holders may write. [Fenced], [Decrement] or a unique index in the database are safe then.
//   - That everything in a block carries the guard: Session(NewDB) and the generics API drop scopes. Use [WithGuard]
//     or [Transaction], and [Protect] to catch the rest. Raw SQL is not looked at by Protect.
//   - Anything for [WithGuard] on a database without the plugin: nothing of this package runs there that could say so.
//   - Exclusion of writers that use no guard, or another key.
//   - With [Fenced]: that a successor gets in while an earlier holder is stopped in the middle of its transaction. It has
//     the fence's row until the database ends its connection (idle_in_transaction_session_timeout, wait_timeout).
//   - With [Once]: what fn does outside the transaction. It may run again after the database rolled it back, and runs anew
//     after [Purge].
//   - The lock for what a block under [Guard] does before its first statement.
//   - That it is seen how MySQL ends a transaction while the block reads Rows, by innodb_rollback_on_timeout, or in what
//     runs on [SQLTx]: look at those errors, and return them.
//   - That a transaction with prepared statements ends after an argument's Value method panicked, but in a group: database/sql
//     waits for ever then, and the key stays locked.
//   - Order of callbacks: one that is registered for "*" after the plugin runs outside the lock. If a callback that
//     was registered by hand panics in a guarded single statement, its transaction stays open until its context ends.
//   - That a statement in a group ([Grouped]) ends with its caller's context: that would end the connection for all. It
//     ends with the group, after 10 s at most; a caller that leaves after its turn gets [ErrCommitUnknown].
//   - That functions in a group do not see of each other what is set, made or locked until the end of a transaction.
//   - With [Table]: what the database does not. After a fail-over to a replica that had not got the row, two may hold it.
//
// # What changes without a guard
//
// BEGIN is sent with the first statement of a transaction, so that its errors come there, and a transaction without
// statements sends nothing. tx.Statement.ConnPool is no *sql.Tx in a transaction: [SQLTx] returns it. Everything else
// is as GORM does it, with prepared statements and without.
package gormlock
