package redisbackend_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// A holder that was revoked cannot seal, not even where an unsealed value lies on the key. Nor does
// its value stay on a node that its Acquire reaches only after Revoke.
func TestQuorum_SealAfterRevoke(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	q := quorumOf(nodes)
	l, operator := locker(t, q, core.WithTTL(time.Minute)), locker(t, q, core.WithTTL(time.Minute))
	last := nodes[2].Client()
	for _, late := range []bool{false, true} {
		for _, n := range nodes { // as if there had been a seal and an Unseal
			ok(t, "SET", n.Client().Set(t.Context(), "onelane:{k}:accepted", "1 1 V", time.Hour).Err())
		}
		k := acquire(t, l, "k")
		eventually(t, "all nodes have the lease", func() bool {
			return !slices.ContainsFunc(nodes, func(n *testutil.Node) bool {
				return n.Client().Get(t.Context(), "onelane:{k}").Val() != k.Owner()
			})
		})
		if late {
			ok(t, "DEL", last.Del(t.Context(), "onelane:{k}").Err())
		}
		ok(t, "Revoke", operator.Revoke(t.Context(), "k", k.Owner()))
		if late {
			ok(t, "SET", last.Set(t.Context(), "onelane:{k}", k.Owner(), time.Minute).Err())
		}
		err := k.Seal(t.Context(), []byte("of a revoked holder"), time.Hour)
		if !errors.Is(err, core.ErrLost) && !(late && errors.Is(err, core.ErrUnavailable)) {
			t.Errorf("late %v: Seal: %v", late, err)
		}
		if a := last.Get(t.Context(), "onelane:{k}:accepted").Val(); strings.Contains(a, "revoked") {
			t.Errorf("late %v: a node has %q", late, a)
		}
		ok(t, "DEL", last.Del(t.Context(), "onelane:{k}").Err())
		if st := status(t, operator, "k"); st != core.Free {
			t.Errorf("late %v: the key is %v", late, st)
		}
	}
}

// Revoke leaves a value that the holder sealed after Revoke looked, also if another caller's try left
// a larger ballot on a node.
func TestQuorum_SealDuringRevoke(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	q := quorumOf(nodes)
	l, b := locker(t, q, core.WithTTL(time.Minute)), open(t, q)
	for i := range 4 {
		orphan, larger := time.Duration(i%2)*time.Hour, i/2 == 1
		key := fmt.Sprint("k", i)
		full := "onelane:{" + key + "}"
		k := acquire(t, l, key, core.WithOrphan(orphan))
		third := nodes[2].Client()
		eventually(t, "the third node has the lease", func() bool {
			return third.Get(t.Context(), full).Val() == k.Owner() &&
				(orphan == 0 || third.Exists(t.Context(), full+":accepted").Val() == 1)
		})
		if larger {
			ok(t, "DEL", third.Del(t.Context(), full, full+":accepted").Err())
			ballot := fmt.Sprint(time.Now().Add(time.Second).UnixMicro(), " somebody")
			ok(t, "SET", third.Set(t.Context(), full+":ballot", ballot, time.Hour).Err())
		}
		ok(t, "Seal", k.Seal(t.Context(), []byte("sold out"), time.Hour))
		// Revoke does this after it saw the holder.
		_, err := b.Release(t.Context(), core.Grant{
			Key: full, Owner: k.Owner(), Orphan: orphan, Deadline: time.Now().Add(time.Minute),
		})
		want(t, "Release by somebody else", err, core.ErrLost)
		if st := status(t, l, key); st != core.Sealed {
			t.Errorf("orphan %v, larger ballot %v: the key is %v", orphan, larger, st)
		}
	}
}

// A Revoke that learns the ballots of too few nodes says so: its ballot may be too small to keep the
// holder from sealing.
func TestQuorum_RevokeNeedsBallots(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	k := acquire(t, locker(t, quorumOf(nodes), core.WithTTL(time.Minute)), "k")
	clients := nodes.Clients()
	for i := range 2 {
		f := newFilter(t, nodes[i].Addr())
		f.set(func(b []byte) (lose, cut bool, _ time.Duration) {
			// Only the release has the owner.
			reads := bytes.Contains(b, []byte("{k}")) && !bytes.Contains(b, []byte(k.Owner()))
			return reads, reads, 0
		})
		clients[i] = proxied(t, f.Addr().String())
	}
	b := open(t, redisbackend.New(clients...))
	_, err := b.Release(t.Context(), core.Grant{Key: "onelane:{k}", Owner: k.Owner(), Deadline: time.Now().Add(time.Minute)})
	want(t, "Release by somebody else", err, core.ErrUnavailable)
}
