// Package sqlbackend keeps the leases and records of package core in a table of a database. A service
// needs no Redis and no ORM for it. It works with PostgreSQL, MySQL, MariaDB and SQLite, through
// database/sql and any of their drivers.
//
//	err := sqlbackend.Migrate(ctx, db) // when the service starts
//	…
//	locker, err := core.New(sqlbackend.New(db))
//
// A lock is a row of onelane_locks with the binary key, its owner and when the lease ends. Each change is
// one statement that compares and sets one row; a deadlock or a serialization failure is tried again.
// Acquire takes three round trips instead of one on Redis, so sqlbackend is not for hot keys. Waiters poll,
// except on PostgreSQL with pgx: a release wakes them by NOTIFY.
//
// At its first call the backend asks the server which database it is, so wrappers of drivers do not matter.
// Any other database is an error that says so.
//
// If transactions can use up all connections, give the backend its own *sql.DB. Otherwise renewals
// wait for a connection, and locks are lost. Also do so if the application changes search_path or
// the database (USE) of its connections, or may leave a transaction open on one. On SQLite, always
// do so, with a separate file, because a transaction there blocks all other writers.
//
// # Guarantees
//
//   - A key has one holder at a time, by the database's clock alone, at every isolation level.
//   - Fencing tokens of a key increase, even after [Purge].
//   - Behind a proxy that sends SELECT to replicas, the writer decides.
//   - Nothing stays held after a call that failed, once the database answers again.
//
// # Does not guarantee
//
//   - Locks after a fail-over to a replica that did not have the row, or whose clock is ahead.
//   - Locks after a crash of a machine that answers COMMIT before the data is on disk.
//   - Leases of full length if the database's clock steps forward.
//   - Exclusion on a multi-master cluster, unless all processes write to one master.
//   - Anything with autocommit=0 on MySQL and MariaDB: every call fails.
package sqlbackend
