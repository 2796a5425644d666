package grpclock_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// BenchmarkUnary compares an interceptor with the bare server, on sockets. It measures the
// interceptor's own work alone, with a backend in memory, and all of it with one Redis.
//
//	go run ./testutil/servers go test -run '^$' -bench Unary -benchmem ./grpclock
func BenchmarkUnary(b *testing.B) {
	memory, err := core.New(backendtest.Memory())
	if err != nil {
		b.Fatal(err)
	}
	defer memory.Close()
	redis := testutil.Locker(b)
	var runs atomic.Int64
	for _, size := range []struct {
		name string
		blob []byte
	}{{"small", nil}, {"100KB", make([]byte, 100<<10)}} {
		r := &request{OrderId: "1", Tags: []string{"a", "b"}, Attributes: map[string]string{"c": "d"}, Blob: size.blob}
		handle := func(context.Context, *request) (*order, error) {
			return &order{Id: "1", Run: runs.Add(1), Blob: size.blob}, nil
		}
		for _, kind := range []struct {
			name   string
			i      grpc.UnaryServerInterceptor
			replay bool
		}{
			{"bare", nil, false},
			{"fresh/memory", grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(memory)), false},
			{"replay/memory", grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(memory)), true},
			{"locked/memory", grpclock.LockByKey("{metadata.idempotency-key}", idempotency.WithLocker(memory)), false},
			{"fresh/redis", grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(redis)), false},
			{"replay/redis", grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(redis)), true},
			{"locked/redis", grpclock.LockByKey("{metadata.idempotency-key}", idempotency.WithLocker(redis)), false},
		} {
			b.Run(size.name+"/"+kind.name, func(b *testing.B) {
				var opts []grpc.ServerOption
				if kind.i != nil {
					opts = append(opts, grpc.UnaryInterceptor(kind.i))
				}
				s := serve(b, &orders{handle: handle}, opts...)
				run := strconv.FormatInt(time.Now().UnixNano(), 36)
				call := func(key string) {
					ctx := metadata.AppendToOutgoingContext(context.Background(), idempotencyKey, key)
					if _, err := s.Create(ctx, r); err != nil {
						b.Fatal(err)
					}
				}
				call(run)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if kind.replay {
						call(run)
					} else {
						call(run + "+" + strconv.Itoa(i))
					}
				}
			})
		}
	}
}

// The fingerprint reads once what a retry must repeat, whatever is in it.
func BenchmarkFingerprint(b *testing.B) {
	for name, r := range map[string]*request{"full": full(), "100KB": {Blob: make([]byte, 100<<10)}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = grpclock.Canonical(r.ProtoReflect())
			}
		})
	}
}

// A fresh call costs 2 round trips, a replay 1, and a lock 2.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n)
	var runs atomic.Int64
	o := &orders{handle: counter(&runs)}
	once := serve(t, o, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))))
	locked := serve(t, o, grpc.UnaryInterceptor(grpclock.LockByKey("{metadata.idempotency-key}", idempotency.WithLocker(l))))
	once.create("warm up", &request{}).want(t, 1, false) // loads the scripts
	once.create("k", &request{}).want(t, 2, false)
	locked.create("warm up", &request{}).want(t, 3, false)
	for _, tc := range []struct {
		name string
		s    *server
		want int64
	}{{"fresh", once, 2}, {"replay", once, 1}, {"locked", locked, 2}} {
		least := int64(math.MaxInt64)
		for try := 0; try < 5 && least != tc.want; try++ { // a busy client may also make a connection
			key := "k"
			if tc.name == "fresh" {
				key = fmt.Sprint("k", try)
			}
			least = min(least, roundTrips(t, n, func() {
				if a := tc.s.create(key, &request{}); a.err != nil {
					t.Error(a.err)
				}
			}))
		}
		if least != tc.want {
			t.Errorf("%s: %d round trips, want %d", tc.name, least, tc.want)
		}
	}
}

// roundTrips counts how often the node read from a client while fn ran.
func roundTrips(t *testing.T, n *testutil.Node, fn func()) int64 {
	t.Helper()
	client := n.Client()
	reads := func() (reads int64) {
		sections, err := client.InfoMap(context.Background(), "stats").Result()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(sections["Stats"]["total_reads_processed"], &reads); err != nil {
			t.Fatal(err)
		}
		return reads
	}
	reads() // connects
	before := reads()
	fn()
	return reads() - before - 1 // without the last INFO
}
