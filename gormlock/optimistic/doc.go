// Package optimistic refuses a write of a row that others changed since it was read. Nobody waits,
// and no lock is needed:
//
//	type Page struct {
//		ID      uint
//		Text    string
//		Version optimistic.Version
//	}
//
//	err := db.Use(gormlock.New(nil)) // once, when the database is opened
//
//	db.Take(&page, 1)
//	err = db.Model(&page).Update("text", "new").Error // … WHERE id = 1 AND version = 3
//
// If others changed the row, the error is [ErrStale]: run the whole transaction anew, as
// gormlock.WithRetry does. [Version] has the rules, and docs/gorm.md says when to use it.
//
// # Guarantees
//
//   - A write of a model that was read writes nothing if its row has another version.
//   - Several rows are written all or none, in your own transaction too, which can go on.
//   - Other writes by the model raise the version.
//   - A rollback takes the new versions back out of the models.
//   - A write that cannot compare versions is an error, and is not sent.
//
// # Does not guarantee
//
//   - Raw SQL, and db.Table without a model, do not raise the version.
//   - The values in a model after a rollback are not those of its row. Read it again.
//   - A row that is deleted for good and created anew under its key may reach the version that you
//     read.
package optimistic
