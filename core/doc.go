// Package core is the lock engine of onelane: distributed locks with fencing tokens, renewal, loss signals and seals,
// on one Redis, a Redis Cluster or Sentinel, a Redlock quorum of independent masters, or on any other [Backend].
//
//	locker, err := core.New(core.Clients(redisClient))
//	err = locker.Do(ctx, "stock:42", func(ctx context.Context) error {
//		// one at a time, in all processes that share the Redis
//		return nil
//	})
//
// A key is free, held or sealed. A [Lock] is the holder's: it can be extended, released, or sealed: swapped, in one
// atomic step, for a value that whoever wants the key gets instead of it. An idempotency record is a sealed lock.
//
// # Telemetry
//
// Metrics, all with the prefix onelane: acquire.duration and seal.duration by outcome, hold.duration by end, renewal.duration by outcome and
// renewal.lag (how late renewals begin), in seconds; locks.held, locks.lost by reason, hand_overs, nodes.excluded by node and reason.
// No attribute names a key, so that there are as many series for a million keys as for one. Spans, onelane.acquire and
// onelane.seal, do: onelane.key. Where no SDK is installed all this costs no allocation. Lost locks, failed renewals and failed
// clean-ups are logged.
//
// # Redis
//
// The smallest user that works (ACL SETUSER): ~onelane:* &onelane:* +eval +evalsha +get +set +del +pttl +pexpire +time. With
// +hello +ping +publish +subscribe +unsubscribe, and on a Redis Cluster +spublish +ssubscribe +sunsubscribe, waiters are woken instead of
// polling; with +lastsave +info a restarted master of a quorum abstains, and there is a warning when Redis may evict locks:
// maxmemory-policy must be noeviction. On a Redis Cluster the client needs +cluster|slots too. What is not permitted fails with
// [ErrUnavailable] at once and is not tried again.
//
// # Guarantees
//
//   - One holder at a time per key, from when Acquire returned until Release is called, the deadline has passed or the
//     lock is lost, as long as the Redis master keeps its data and clocks run at the same speed within 1 %.
//   - A lock that ends early is never silent: its context is cancelled with cause [ErrLost] no later than its
//     deadline, and Release says so. Loss is final: nothing takes an expired key back.
//   - Fencing tokens of a key strictly increase. A resource that refuses smaller tokens than it has seen is safe
//     even where the first guarantee does not hold.
//   - Only the holder releases, extends and seals: another's key is never touched. A renewal under way is over before
//     the key is released.
//   - When the context of Acquire ends, it returns an error and nothing stays held: what may have been set is released
//     in the background, or lapses with its TTL.
//   - Every call returns when its context's deadline passes, within 100 ms, whatever the client or the server do.
//   - What the caller's own context ended is told as that, by the context's error, and never as [ErrUnavailable]; what the backend or a
//     time-out of ours ended never matches an error of a context. Either way it is not known whether the call had an effect.
//   - Every key written to Redis has an expiry.
//   - A held lock costs no goroutine and less than a kilobyte, and a key leaves nothing behind in the process.
//   - A quorum works as long as a majority of its masters does: what hangs is not waited for, and soon not asked for new locks
//     until a probe finds that it answers. A master that restarts empty grants nothing for one TTL, so that what it forgot has ended.
//
// # Does not guarantee
//
//   - Exclusion after a fail-over to a replica that had not got the key yet, or after Redis lost or evicted its data:
//     set maxmemory-policy to noeviction, and use the fencing token where money is at stake.
//   - Exclusion on a quorum when a majority of its masters loses its data at once, or when a master restarts empty where LASTSAVE
//     and INFO are forbidden: elsewhere a master that has just started grants nothing for one TTL (the longer of the default and
//     the call's: give all Lockers one [WithTTL], not shorter than the longest lease or [Lock.Extend]). Masters that
//     are all new, have started together (within a second and a tenth of that TTL) and know no holder of the key are taken for a new quorum
//     by a process that first asks them then, and it does not wait: one that restarts empty that soon after may be taken for new too.
//   - That a process that was stopped for longer than the TTL does nothing after its lock is lost: it can only be told.
//     The resource must check the token, or the transaction must (see gormlock).
//   - Order between processes: a process serves its own waiters first come, first served, but which process gets the
//     key next is up to Redis. A process keeps a hot key for 100 ms at most while others wait that are told of releases ([Clients]); those
//     take turns. Who polls ([Pools]) finds the moment between two turns by chance, and looks more often after a second: simulated beside
//     eight of the others, it waits for 2 to 5 s; plain redsync users, who do not look more often, for 10 to 40 s.
//   - That a call returns at once when its context is cancelled while one Redis does not answer: go-redis looks at deadlines only, so it
//     returns at its deadline or at the node's time-out ([WithNodeTimeout]); another goroutine for each call, tried, costs a seventh of it.
//   - Exclusion between goroutines that share a context which carries the lock: see [WithoutLock].
package core
