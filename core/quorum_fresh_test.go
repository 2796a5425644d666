package core_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// Masters that are all new are used at once, but not by a process that comes when one of them was used and has been restarted since:
// that one is younger than the others, or another still knows a holder.
func TestQuorum_NewMastersAreNotTakenForNewWhenOneForgot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key  string
		wait time.Duration // until the restart
	}{
		"a holder is known":       {"k", 0},
		"they are not of one age": {"other", 3500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := testutil.Cluster(t, 3)
			first := locker(t, core.Clients(nodes.Clients()...), patient)
			for _, key := range []string{"k", "other"} {
				acquire(t, first, key)
				eventually(t, "all nodes hold it", func() bool { // and one of them as if it had not got there
					return nodes[2].Client().Del(t.Context(), "onelane:{"+key+"}").Val() == 1
				})
			}
			if c.wait > 0 { // nor is the holder known where it is asked: the process learns of the nodes by another key
				time.Sleep(c.wait)
			}
			nodes[1].Restart() // and forgets it
			second := locker(t, core.Clients(nodes.Clients()...), patient)
			if c.wait > 0 {
				_, err := second.TryAcquire(t.Context(), "free")
				want(t, "TryAcquire of a free key", err, core.ErrUnavailable)
			}
			if _, err := second.TryAcquire(t.Context(), c.key); err == nil {
				t.Error("two hold the key")
			}
		})
	}
}

// A quorum whose nodes are not several is none: one Redis that fails, or forgets, would have two votes.
func TestQuorum_OneRedisHasOneVote(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	_, port, err := net.SplitHostPort(nodes[0].Addr())
	ok(t, "SplitHostPort", err)
	again := redis.NewClient(&redis.Options{Addr: net.JoinHostPort("localhost", port), MaxRetries: -1})
	t.Cleanup(func() { _ = again.Close() })
	for name, clients := range map[string][]redis.UniversalClient{
		"one client":  {nodes[0].Client(), again, again},
		"one address": {nodes[2].Client(), nodes[1].Client(), nodes[1].Client()},
	} {
		_, err := core.New(core.Clients(clients...))
		if err == nil || !strings.Contains(err.Error(), "2 and 3 of the quorum") || !strings.Contains(err.Error(), clients[2].(*redis.Client).Options().Addr) {
			t.Errorf("%s: New returned %v", name, err)
		}
	}
	if !nodes[0].Real() { // others do not say who they are
		return
	}
	l := locker(t, core.Clients(nodes[0].Client(), nodes[1].Client(), again), patient)
	eventually(t, "it is noticed by another name of the host", func() bool {
		k, err := l.TryAcquire(t.Context(), "k")
		if err == nil {
			ok(t, "Release", k.Release(t.Context()))
			return false
		}
		if errors.Is(err, core.ErrTaken) { // by the vote of an earlier call that came late by the other name
			return false
		}
		want(t, "TryAcquire", err, core.ErrUnavailable)
		return strings.Contains(err.Error(), "nodes 1 and 3 of the quorum are one Redis")
	})
	eventually(t, "nothing stays locked", func() bool { return nodes[1].Client().Exists(t.Context(), "onelane:{k}").Val() == 0 })
	for range 3 {
		_, err := l.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrUnavailable)
	}
}
