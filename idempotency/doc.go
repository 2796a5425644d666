// Package idempotency makes a request that is sent twice run once: the first takes a claim on its key and seals the
// key with its answer, and every repeat gets that answer. What serves HTTP or gRPC is in the packages built on it.
//
// A claim is a lock of package core, and its record is that lock, sealed with the answer instead of released. So a
// fresh request costs two round trips to Redis and a replay one, a claim is renewed while its holder works, and a
// holder that dies frees the key when its lease ends.
//
// [Claims.Begin] says what is to be done:
//
//   - nobody ran yet: a [Claim]; do the work, then [Claim.Complete] or [Claim.Abandon] it;
//   - it ran already: the [Record] to answer from;
//   - it is running: [*InFlightError];
//   - the key belongs to another request: [*MismatchError], also while that one runs.
//
// # Clients
//
// [NewTransport] is the other half: it gives each call of an [net/http.Client] a key, and sends the call again with that
// key when its outcome is not known.
//
// # Metrics and spans
//
// Claims report to the providers of their Locker. The counter onelane.idempotency.requests counts each request once, by
// onelane.outcome: ran, tombstone, unrecorded, lost or abandoned for one that had a claim; replayed, not_kept,
// in_flight, mismatch, unreadable, store_down, unprotected or refused for one that had none. Histograms are
// onelane.idempotency.run.duration and onelane.idempotency.record.size. Keys are in no attribute.
//
// # Guarantees
//
//   - Of all who begin with one key, one at a time has a claim, and none has one after it was completed, for as long
//     as the record is kept (24 h by default) and Redis keeps its data.
//   - A retry with another fingerprint gets a [*MismatchError], never a replay and never a claim.
//   - What others see of a running request, and what stays in Redis of its fingerprint, is a hash keyed with a random
//     salt: equal requests under two keys do not look alike.
//   - Whoever has no claim cannot touch the record or the claim of another. A claim whose lease was lost cannot be
//     completed: its record is refused, so that it cannot overwrite its successor's.
//   - A context that is cancelled does not lose the record: Complete works on a context of its own, for a limited time.
//   - A record that cannot be read, or is of an unknown version, is an error that matches [ErrRecord], never a new run,
//     unless [RunUnreadable] says so. A record of any size, compressed or not, takes at most 16 MiB to read.
//   - With [WithEncryption] neither records nor the fingerprints of running requests can be read in the backend, and a
//     record that was forged, changed or moved to another key is an error that matches [ErrRecord].
//
// # Does not guarantee
//
//   - That the work is done once if it was abandoned, or if its process died before Complete: then the next request
//     runs. Make the effect and its proof one database transaction where that must not happen.
//   - Anything after Redis lost the record, by a fail-over to a replica that lagged behind or by eviction.
//   - That a record is secret without [WithEncryption]: it is stored as it is given. The names of keys, which tell who
//     asked for what, can be read even with it; and whoever can delete keys can make a request run again.
package idempotency
