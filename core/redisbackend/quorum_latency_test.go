package redisbackend_test

import (
	"errors"
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
// TTL: its renewals connect. If the machine was too slow for an answer, it is tried with new connections.
// If it was too slow for a lease, the next one is longer.
func TestQuorum_LongRoundTrips(t *testing.T) {
	t.Parallel()
	for _, roundTrip := range []time.Duration{5, 20, 50, 100} {
		roundTrip *= time.Millisecond
		t.Run(roundTrip.String(), func(t *testing.T) {
			t.Parallel()
			ttl := 10 * time.Second // a busy machine connects late
			for try := 1; ; try++ {
				err := keptBeyondTTL(t, roundTrip, ttl)
				switch {
				case try < 3 && errors.Is(err, core.ErrLost):
					ttl *= 2
				case try < 3 && errors.Is(err, core.ErrUnavailable):
				default:
					ok(t, "the lock", err)
					return
				}
			}
		})
	}
}

// keptBeyondTTL holds a lock on a new quorum for longer than its TTL, and returns why it ended.
func keptBeyondTTL(t *testing.T, roundTrip, ttl time.Duration) error {
	var clients []redis.UniversalClient
	for _, n := range testutil.Cluster(t, 3) {
		clients = append(clients, newClient(t, &redis.Options{Addr: link(t, n.Addr(), roundTrip/2)}))
	}
	b := redisbackend.New(clients...)
	b.NewInstallation = true
	l := locker(t, b, core.WithTTL(ttl))
	k, err := l.TryAcquire(t.Context(), "held")
	if err != nil {
		return fmt.Errorf("the first TryAcquire: %w", err)
	}
	for i := range 5 {
		other, err := l.Acquire(t.Context(), fmt.Sprint("k", i))
		if err == nil {
			err = other.Release(t.Context())
		}
		if err != nil {
			return errors.Join(err, k.Release(t.Context()))
		}
	}
	kept := ttl * 3 / 2
	if long {
		kept = 4 * ttl
	}
	select {
	case <-k.Context().Done():
	case <-time.After(kept):
	}
	return errors.Join(k.Err(), k.Release(t.Context()))
}
