package redisbackend_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// link is a proxy that delays each direction by a fixed time. It keeps the order and the throughput.
func link(t testing.TB, target string, oneWay time.Duration) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				return
			}
			go delay(client, server, oneWay)
			go delay(server, client, oneWay)
		}
	}()
	return l.Addr().String()
}

func delay(from, to net.Conn, oneWay time.Duration) {
	type chunk struct {
		at   time.Time
		data []byte
	}
	chunks := make(chan chunk, 1<<12)
	go func() {
		defer to.Close()
		for c := range chunks {
			time.Sleep(time.Until(c.at))
			if _, err := to.Write(c.data); err != nil {
				break
			}
		}
		for range chunks {
		}
	}()
	defer close(chunks)
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			chunks <- chunk{time.Now().Add(oneWay), buffer[:n]}
		}
		if err != nil {
			return
		}
	}
}

// A quorum far away works with default options from the first Acquire on, and keeps a lock beyond its
// TTL: its renewals connect.
func TestQuorum_LongRoundTrips(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second // a busy machine connects late
	held := make(map[time.Duration]*core.Lock)
	for _, roundTrip := range []time.Duration{5, 20, 50, 100} {
		roundTrip *= time.Millisecond
		var clients []redis.UniversalClient
		for _, n := range testutil.Cluster(t, 3) {
			clients = append(clients, newClient(t, &redis.Options{Addr: link(t, n.Addr(), roundTrip/2)}))
		}
		b := redisbackend.New(clients...)
		b.NewInstallation = true
		l := locker(t, b, core.WithTTL(ttl))
		k, err := l.TryAcquire(t.Context(), "held")
		ok(t, fmt.Sprintf("the first TryAcquire over %v", roundTrip), err)
		held[roundTrip] = k
		for i := range 5 {
			ok(t, "Release", acquire(t, l, fmt.Sprint("k", i)).Release(t.Context()))
		}
	}
	kept := ttl * 3 / 2
	if long {
		kept = 4 * ttl
	}
	time.Sleep(kept)
	for roundTrip, k := range held {
		ok(t, fmt.Sprintf("the lock held over %v", roundTrip), k.Err())
		ok(t, "Release", k.Release(t.Context()))
	}
}
