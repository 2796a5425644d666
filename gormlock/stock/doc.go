// Package stock sells what is counted in a row of the database, by GORM, without a lock: no Locker,
// no Redis and no plugin.
//
//	sale, err := stock.NewSale[Stock, Order](db, "remaining", stock.Unique("sku", "buyer")) // once
//
//	left, err := sale.Sell(ctx, 42, 1, &Order{SKU: 42, Buyer: 7}) // takes 1, and stores the order
//
// [Sale] is for a flash sale. The calls for one row share transactions: one UPDATE by their sum, one
// INSERT of their orders, one COMMIT. So one row sells tens of times what the best statement by hand
// sells. [Decrement] takes from one row, alone or in your own transaction, and [DecrementAll] from
// several, all or none.
//
// # Guarantees
//
//   - Nothing is oversold, and what was taken was paid for: by as many processes as you like.
//   - Every error of Sell but [ErrCommitUnknown] means that nothing was stored, and that the order
//     is as you passed it.
//   - Each call has its own result. An order that the database or a hook refuses, or that panics,
//     costs its caller alone.
//   - [ErrDuplicate] means that an order with the same values is stored.
//   - A Decrement never takes more than there is. A DecrementAll takes all rows or none.
//
// # Does not guarantee
//
//   - Hooks of an order run for a copy of it, with the context of NewSale, up to three times. They
//     must have no effects outside of the transaction. The associations of your order become copies as well.
//   - Triggers and CHECKs on the row of stock see one UPDATE by the sum.
//   - SERIALIZABLE is not kept. On PostgreSQL a Sale runs in READ COMMITTED, and on MariaDB after a
//     conflict. The row's lock makes that enough. SET search_path, and row-level security by a session
//     variable, do not reach it.
//   - Refused orders cost speed. With 1 % of them a sale has about a tenth of its speed, which is
//     still several times what you get by hand.
//
// It works on PostgreSQL, MySQL, MariaDB and SQLite, with and without PrepareStmt, and behind
// dbresolver, where it writes to the primary. Behind PgBouncer's transaction pooling, pgx needs
// default_query_exec_mode=exec or simple_protocol. docs/gorm.md says when to use what.
package stock
