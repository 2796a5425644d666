package core_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// A caller that cancels its context as soon as a majority has answered does not keep the others from what they were asked: a seal
// and a longer lease are on a slow node too.
func TestQuorum_WhatAMajorityKeepsASlowNodeKeepsToo(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	slow := redis.NewClient(&redis.Options{Addr: nodes[2].Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		select {
		case <-time.After(100 * time.Millisecond):
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}})
	t.Cleanup(func() { _ = slow.Close() })
	l := locker(t, core.Clients(nodes[0].Client(), nodes[1].Client(), slow), core.WithNodeTimeout(5*time.Second), core.WithTTL(time.Minute), core.WithoutRenewal())
	name, err := core.BackendKey("onelane:", "k")
	ok(t, "BackendKey", err)
	there := nodes[2].Client()

	k := acquire(t, l, "k")
	eventually(t, "the slow node granted", func() bool { return there.Exists(t.Context(), name).Val() == 1 })
	hangUp := func() { // so that the next call has to dial
		ok(t, "CLIENT KILL", there.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
	}

	hangUp()
	ctx, cancel := context.WithCancel(t.Context())
	ok(t, "Extend", k.Extend(ctx, time.Hour))
	cancel()
	eventually(t, "the slow node extended", func() bool { return there.PTTL(t.Context(), name).Val() > time.Minute })

	hangUp()
	ctx, cancel = context.WithCancel(t.Context())
	ok(t, "Seal", k.Seal(ctx, []byte("answer"), time.Hour))
	cancel()
	eventually(t, "the slow node is sealed", func() bool { return strings.HasSuffix(there.Get(t.Context(), name).Val(), ":answer") })
}
