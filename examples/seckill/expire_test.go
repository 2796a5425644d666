package main

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// After a quiet time the clock moves before a lease is set, and not after it.
func TestExpire_AfterAQuietTime(t *testing.T) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	expire(m)
	client := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	const ttl = 300 * time.Millisecond
	set := func(key string) {
		t.Helper()
		const script = `return redis.call('SET', KEYS[1], 'holder', 'PX', ARGV[1])`
		if err := client.Eval(t.Context(), script, []string{key}, ttl.Milliseconds()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("before")
	// The quiet time, and then the time in which a late move of the clock would come.
	time.Sleep(ttl + ttl/2)
	set("after")
	time.Sleep(200 * time.Millisecond)
	if !m.Exists("after") {
		t.Errorf("a key that lasts for %v was gone at once", ttl)
	}
	if m.Exists("before") {
		t.Error("an old key did not expire")
	}
}
