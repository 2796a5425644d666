// Package etcdbackend keeps the leases of package core in etcd 3.4 or later.
//
//	locker, err := core.New(etcdbackend.New(client))
//
// Each write of a key sets its state until the next write. The value of a held key names the owner
// and the length of the lease. Every change is one transaction, and succeeds only if the key is as
// it was last read. So nobody overwrites or deletes a write that it does not know. etcd replicates
// each write to a majority: no lock is lost if any minority of the members fails.
//
// The deadline of a lease is certain because two things end it, and neither does so early:
//
//   - Another process takes the key over only after it has seen the key unchanged for the whole
//     TTL. It measures that time on its own monotonic clock. It can only have seen the key after
//     the holder sent the write, and the holder counts its deadline from there. No two clocks are
//     compared. They only need to run at about the same speed, and the deadline leaves 1 % for
//     that.
//   - If no process removes a key, etcd itself removes it, with an etcd lease that outlasts the
//     TTL. That lease began before the write was sent, lasts long enough for the key, and is never
//     renewed. A new leader lets it last longer, never shorter. A leader that was cut off cannot
//     end it early. Therefore a process that sees an orphan for the first time may ask etcd for the
//     age of that lease.
//
// A lost reply is resolved: the backend marks the failed attempt void in etcd and undoes it. If a
// request of that attempt is still under way, it has no effect when it arrives.
//
// Fencing tokens come from etcd's revisions, which never go back, not even for keys that were
// deleted. Every lock has one at no cost. Only restoring etcd from a snapshot turns revisions back;
// see docs/etcd.md. TTLs are exact to the millisecond. Values of seals have at most 1.25 MiB.
//
// A lock is one write, and its release is another write. Each takes a round trip to a majority and
// a write to its disks. Watches wake the waiters; they all use one stream.
package etcdbackend
