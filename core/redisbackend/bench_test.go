package redisbackend_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/testutil"
)

// BenchmarkOwnKeys compares a lock and its release with the two bare commands on go-redis.
func BenchmarkOwnKeys(b *testing.B) {
	for _, callers := range []int{1, 4, 16, 64, 256} {
		node := testutil.Redis(b)
		l, client := locker(b, one(node.Client())), node.Client()
		each(b, fmt.Sprintf("onelane-%d", callers), callers, func(key string) error {
			k, err := l.Acquire(context.Background(), key)
			if err != nil {
				return err
			}
			return k.Release(context.Background())
		})
		del := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
		each(b, fmt.Sprintf("bare-%d", callers), callers, func(key string) error {
			if err := client.SetNX(context.Background(), key, "owner", 10*time.Second).Err(); err != nil {
				return err
			}
			return del.Run(context.Background(), client, []string{key}, "owner").Err()
		})
	}
}

// each runs fn in several goroutines, each with its own key.
func each(b *testing.B, name string, callers int, fn func(key string) error) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				key := "key:" + strconv.Itoa(i)
				for range b.N / callers {
					if err := fn(key); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

// BenchmarkHotKey has one hot key. The counter has no mutex and must come out exact.
func BenchmarkHotKey(b *testing.B) {
	l := locker(b, one(testutil.Redis(b).Client()))
	n := 0
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			err := l.Do(context.Background(), "k", func(context.Context) error { n++; return nil })
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	if n != b.N {
		b.Errorf("the counter is %d after %d locks", n, b.N)
	}
}
