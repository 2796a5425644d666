package core_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

func BenchmarkLockUnlock(b *testing.B) {
	for name, backend := range map[string]func() core.Backend{
		"redis":  func() core.Backend { return core.Clients(testutil.Redis(b).Client()) },
		"memory": testutil.Memory,
	} {
		b.Run(name, func(b *testing.B) {
			l := locker(b, backend())
			b.ReportAllocs()
			for b.Loop() {
				k, err := l.Acquire(context.Background(), "k")
				if err != nil {
					b.Fatal(err)
				}
				if err := k.Release(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOwnKeys(b *testing.B) {
	l := locker(b, core.Clients(testutil.Redis(b).Client()))
	var worker atomic.Int64
	b.SetParallelism(128)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		key := "key:" + strconv.FormatInt(worker.Add(1), 10)
		for pb.Next() {
			k, err := l.Acquire(context.Background(), key)
			if err == nil {
				err = k.Release(context.Background())
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// One hot key: the counter has no lock of its own and must come out exact.
func BenchmarkHotKey(b *testing.B) {
	l := locker(b, core.Clients(testutil.Redis(b).Client()))
	n := 0
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			k, err := l.Acquire(context.Background(), "hot")
			if err != nil {
				b.Error(err)
				return
			}
			n++
			if err := k.Release(context.Background()); err != nil {
				b.Error(err)
				return
			}
		}
	})
	if n != b.N {
		b.Fatalf("counted %d of %d", n, b.N)
	}
}
