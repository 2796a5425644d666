package sqlbackend_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/glebarez/sqlite"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
)

// memoryDB is a database in memory. Each connection to it would be a separate database.
func memoryDB() *sql.DB {
	db, err := sql.Open(sqlite.DriverName, "file::memory:") // sql.Open("pgx", dsn) in a service
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	return db
}

// Locks without Redis and without an ORM, for every adapter of the kit.
func ExampleNew() {
	ctx := context.Background()
	db := memoryDB()
	defer db.Close()
	if err := sqlbackend.Migrate(ctx, db); err != nil { // when the service starts
		log.Fatal(err)
	}
	locker, err := core.New(sqlbackend.New(db, sqlbackend.WithTimeout(time.Second)))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	err = locker.Do(ctx, "report:2024", func(ctx context.Context) error {
		_, err := locker.TryAcquire(context.Background(), "report:2024")
		fmt.Println("another one:", errors.Is(err, core.ErrTaken))
		return nil
	})
	fmt.Println(err)
	// Output:
	// another one: true
	// <nil>
}

// The table is made when a service starts, as often as it starts.
func ExampleMigrate() {
	db := memoryDB()
	defer db.Close()
	for range 2 {
		fmt.Println(sqlbackend.Migrate(context.Background(), db))
	}
	// Output:
	// <nil>
	// <nil>
}

// A job that runs once a night removes the rows of keys that nobody has locked since.
func ExamplePurge() {
	ctx := context.Background()
	db := memoryDB()
	defer db.Close()
	if err := sqlbackend.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	n, err := sqlbackend.Purge(ctx, db, 24*time.Hour)
	fmt.Println(n, err)
	// Output: 0 <nil>
}
