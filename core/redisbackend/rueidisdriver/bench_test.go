package rueidisdriver_test

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/testutil"
)

// BenchmarkOwnKeys compares a lock and its release with the two bare commands on rueidis, for one
// caller and for many.
func BenchmarkOwnKeys(b *testing.B) {
	c := single(b, testutil.Redis(b).Addr())
	l := locker(b, patient(c))
	del := rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	var id atomic.Int64
	for _, callers := range []int{1, 64} {
		run := func(name string, cycle func(key string) error) {
			b.Run(name+"-"+strconv.Itoa(callers), func(b *testing.B) {
				b.ReportAllocs()
				b.SetParallelism(callers)
				each := func(next func() bool) {
					key := strconv.FormatInt(id.Add(1), 10)
					for next() {
						if err := cycle(key); err != nil {
							b.Error(err)
							return
						}
					}
				}
				if callers == 1 {
					each(b.Loop)
					return
				}
				b.RunParallel(func(pb *testing.PB) { each(pb.Next) })
			})
		}
		run("lock", func(key string) error {
			k, err := l.Acquire(b.Context(), key)
			if err != nil {
				return err
			}
			return k.Release(b.Context())
		})
		run("bare", func(key string) error {
			set := c.B().Set().Key(key).Value("owner").Nx().PxMilliseconds(30000).Build()
			if err := c.Do(b.Context(), set).Error(); err != nil && !rueidis.IsRedisNil(err) {
				return err
			}
			return del.Exec(b.Context(), c, []string{key}, []string{"owner"}).Error()
		})
	}
}
