// Package zkbackend keeps the leases of package core in ZooKeeper 3.5 or later. It works with one
// server or with an ensemble. On an ensemble, locks survive whatever happens to a minority of the
// servers.
//
//	locker, err := core.New(zkbackend.New([]string{"zk1:2181", "zk2:2181", "zk3:2181"}))
//
// A held key is two persistent nodes:
//
//   - One has the key's name, and says who holds the key and for how long.
//   - Below it is a guard whose name no other lease ever has.
//
// Every change of the first node is one transaction with two conditions: the guard is there, and
// the node has the version that was read. So a request changes or deletes only the lease that its
// caller has read, however late it arrives. A fencing token comes from the number of the
// transaction that made the guard (its zxid); 64 tokens belong to each number. So tokens increase
// over elections, restarts and deleted keys.
//
// A deadline is certain because no clocks are compared, and no session decides:
//
//   - A process takes a key over only after it has itself seen the node unchanged for the whole
//     TTL. It measures that time on its own monotonic clock, from an answer that came after the
//     holder's last write.
//   - The holder counts the same TTL from a time before it sent that write. It subtracts 1 % and 2
//     ms for clocks that run at different speeds, so its deadline comes first.
//   - An old answer of a server that lags behind does no harm: ZooKeeper refuses the version in it.
//   - A process that has just started waits for a whole TTL before it takes over the key of a
//     holder that died. Until then it reports the key as held.
//   - Seals and orphans may last longer than any process. So they also end by the clock of
//     ZooKeeper's leader, but one minute later. The servers' clocks must not differ by more than
//     that.
//
// Waiters of a process share one watch for each key. Every process looks at all keys about once a
// minute and removes what has expired. If the keys are many, it looks at a random part of them each
// time. Nothing else stays behind.
//
// ZooKeeper keeps all nodes in memory, so a sealed value should be small. It may have up to 16 MiB,
// in pieces of 512 KiB.
package zkbackend
