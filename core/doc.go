// Package core is the lock engine of onelane: distributed locks with renewal, loss signals, fencing
// tokens and seals. Locks live in Redis, in an SQL table or in any other [Backend].
//
//	locker, err := core.New(redisbackend.New(client))
//	err = locker.Do(ctx, "stock:42", func(ctx context.Context) error {
//		// one caller at a time, in all processes that share the Redis
//		return nil
//	})
//
// A key is free, held, sealed or orphaned. A [Lock] is the holder's handle. The holder can extend
// it, release it or seal it. A seal leaves a value under the key, and every later caller gets that
// value instead of the lock.
//
// Three things to know:
//
//   - A lock can be lost: the lease ends if the holder cannot renew it. The context of the lock is
//     canceled then, no later than its deadline. Work under [Lock.Context].
//   - A process that hangs past its deadline does not notice. If money is at stake, let the
//     resource check the fencing token ([Lock.Token]), or let the database transaction check it
//     (see gormlock).
//   - Errors match with [errors.Is]: [ErrTaken], [ErrSealed], [ErrOrphaned], [ErrLost],
//     [ErrUnavailable], [ErrInvalidKey], [ErrClosed], [ErrReleased].
//
// Metrics begin with "onelane."; no attribute names a key. The spans onelane.acquire and
// onelane.seal carry the key as onelane.key. Outside of a trace there are none, unless
// [WithTelemetry] sets a provider.
//
// docs/guarantees.md has the guarantees, their limits and their tests. docs/production.md has the
// set-up.
package core
