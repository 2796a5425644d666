// Package gormlock runs GORM's statements and transactions under distributed locks: lock, BEGIN,
// …, COMMIT, unlock.
//
//	err := db.Use(gormlock.New(locker)) // once
//
//	err = gormlock.Transaction(db.WithContext(ctx), "stock:42", func(tx *gorm.DB) error { … })
//	err = db.Scopes(gormlock.Guard("stock:42")).Transaction(func(tx *gorm.DB) error { … })
//
// [Transaction] is the form to learn. [Guard] is a scope for a write or a transaction, and
// [WithGuard] a context for code that drops scopes. If one statement decides and writes, the database
// needs no lock: package gormlock/stock takes units, and sells from one row tens of times as fast.
// Package gormlock/optimistic refuses writes of rows that others changed.
// docs/gorm.md shows each form, and docs/guarantees.md has the limits in full.
//
// # Guarantees
//
//   - The lock is acquired before BEGIN and the first snapshot, and released after the answer to COMMIT.
//   - If the outcome of COMMIT is unknown, the error is [ErrCommitUnknown]. Only an error with which
//     the database rolls back is definite. Without an answer, the key stays locked for its lease.
//   - If the lock is lost or the context ends before COMMIT, the transaction is rolled back.
//   - Panics in blocks and hooks roll back, then unlock.
//   - If the database ends a guarded transaction, later statements of one goroutine write nothing.
//   - Several keys are all acquired or none, in one order everywhere.
//   - A guard that cannot guard is an error, and what it guards is not sent.
//   - With [Fenced], a holder that was overtaken commits nothing, whatever its lock says.
//   - [AfterCommit] functions run once after a known COMMIT if the process lives, else never.
//   - [Once] commits at most once per key, whatever becomes of Redis or the process.
//   - On SQLite, a guarded transaction whose COMMIT is rejected is rolled back.
//
// # Does not guarantee
//
//   - Exclusion of writers without the guard. [Protect] refuses those that GORM builds.
//   - A lock before a block's first statement under [Guard], or for statements that drop scopes.
//   - Exclusion after Redis lost the lock, unless the guard is [Fenced] or the database decides.
//
// Without a guard, transactions begin in the database with their first statement.
package gormlock
