package etcdbackend_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// abandoned returns how many waits of each kind are given up. 100,000 take about four minutes:
//
//	ONELANE_ABANDONED=100000 go run ./testutil/servers -only etcd go test -v -run AbandonedWaits ./core/etcdbackend
func abandoned(t *testing.T) int {
	text, set := os.LookupEnv("ONELANE_ABANDONED")
	switch {
	case !set && check.Long:
		return 1500
	case !set:
		return 600
	}
	n, err := strconv.Atoi(text)
	ok(t, "ONELANE_ABANDONED", err)
	return n
}

// Waits that are given up leave no watch in etcd, no goroutine and no memory. Not parallel: it
// counts goroutines.
func TestWatch_AbandonedWaits(t *testing.T) {
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	b := open(t, etcd.Client())
	l := locker(t, etcd.Client())
	held := acquire(t, b, request("onelane:{k}", time.Hour, 0))
	_, stop, err := b.Watch(t.Context(), held.Key)
	ok(t, "Watch", err)
	stop()
	eventually(t, "no watch", func() bool { return watchers(t, etcd) == "0" })
	waits := abandoned(t)
	before, heapBefore := runtime.NumGoroutine(), heap()
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			for range waits / 30 {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
				if _, err := l.Acquire(ctx, "k"); err == nil {
					t.Error("two holders")
				}
				cancel()
				if _, stop, err := b.Watch(t.Context(), held.Key); err == nil {
					stop()
				}
			}
		})
	}
	all.Wait()
	eventually(t, "no watch is left", func() bool { return watchers(t, etcd) == "0" })
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+10 })
	after := heap()
	t.Logf("%d waits of each kind: %d to %d KiB of memory", waits, heapBefore>>10, after>>10)
	if after > heapBefore+16<<20 {
		t.Errorf("%d KiB of memory are in use, and were %d before", after>>10, heapBefore>>10)
	}
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// watchers returns how many watches etcd has.
func watchers(t *testing.T, etcd *testutil.EtcdMember) string {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+etcd.Addr()+"/metrics", nil)
	ok(t, "NewRequest", err)
	request.Close = true
	resp, err := http.DefaultClient.Do(request)
	ok(t, "GET /metrics", err)
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if n, found := strings.CutPrefix(lines.Text(), "etcd_debugging_mvcc_watcher_total "); found {
			return n
		}
	}
	return "unknown"
}

// A release wakes a waiter of another process at once.
func TestWatch_WakesWaiter(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	first, second := locker(t, etcd.Client()), locker(t, etcd.Client())
	k, err := first.Acquire(t.Context(), "k")
	ok(t, "Acquire", err)
	got := make(chan error)
	go func() {
		_, err := second.Acquire(t.Context(), "k")
		got <- err
	}()
	eventually(t, "the waiter watches", func() bool { return watchers(t, etcd) == "1" })
	ok(t, "Release", k.Release(t.Context()))
	ok(t, "Acquire of the waiter", <-got)
	eventually(t, "no watch is left", func() bool { return watchers(t, etcd) == "0" })
}

// A holder whose key is gone hears of it with its next renewal.
func TestLocker_LostLease(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	var k *core.Lock
	key := ""
	for ttl := 3 * time.Second; key == ""; ttl *= 2 {
		if ttl > 12*time.Second {
			t.Fatal("the lock is lost without a cause, whatever its TTL")
		}
		name, renewed := fmt.Sprint("k", ttl), false
		var err error
		k, err = locker(t, client, core.WithTTL(ttl)).Acquire(t.Context(), name)
		ok(t, "Acquire", err)
		eventually(t, "the lock is renewed", func() bool {
			resp, err := client.Get(t.Context(), "onelane:{"+name+"}")
			ok(t, "Get", err)
			renewed = len(resp.Kvs) == 1 && resp.Kvs[0].Version >= 3
			return renewed || k.Err() != nil
		})
		if renewed && k.Err() == nil { // on a busy machine the lease may end before it is renewed
			key = "onelane:{" + name + "}"
		}
	}
	_, err := client.Delete(t.Context(), key)
	ok(t, "Delete", err)
	select {
	case <-k.Context().Done():
		want(t, "cause", context.Cause(k.Context()), core.ErrLost)
	case <-time.After(30 * time.Second):
		t.Error("the loss was not noticed")
	}
}

// closingWatcher is a client's Watcher whose watches end late: when they are let go.
type closingWatcher struct {
	clientv3.Watcher
	asked, ended chan string // keys
	goOn         chan struct{}
}

func (w *closingWatcher) Watch(ctx context.Context, key string, _ ...clientv3.OpOption) clientv3.WatchChan {
	w.asked <- key
	<-ctx.Done()
	w.ended <- key
	<-w.goOn
	over := make(chan clientv3.WatchResponse)
	close(over)
	return over
}

// No watch begins while Close waits for those that are under way.
func TestClose_WatchBeginsMeanwhile(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	w := &closingWatcher{Watcher: client.Watcher, asked: make(chan string, 2), ended: make(chan string, 2), goOn: make(chan struct{})}
	client.Watcher = w
	b := open(t, client)
	watch := func(key string) <-chan error {
		got := make(chan error, 1)
		go func() {
			_, stop, err := b.Watch(t.Context(), key)
			stop()
			got <- err
		}()
		return got
	}
	first := watch("first")
	<-w.asked
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	<-w.ended // Close has begun, and waits for the first watch
	second := watch("second")
	select {
	case err := <-second:
		want(t, "Watch while Close waits", err, core.ErrUnavailable)
		close(w.goOn)
	case key := <-w.asked:
		t.Errorf("the watch of %q begins while Close waits", key)
		close(w.goOn)
		<-second
	}
	<-first
	ok(t, "Close", <-closed)
}

// expiring is the Watcher of a client whose tokens expire. As the client does, it has a stream for
// each set of metadata, with the token that the stream began with.
type expiring struct {
	clientv3.Watcher
	mu      sync.Mutex
	expired map[string]bool // by stream
}

func (w *expiring) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	sent, _ := metadata.FromOutgoingContext(ctx)
	stream := fmt.Sprint(map[string][]string(sent)) // sent prints no values
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.expired[stream] {
		refused := make(chan clientv3.WatchResponse, 1)
		refused <- clientv3.WatchResponse{Canceled: true}
		close(refused)
		return refused
	}
	w.expired[stream] = false
	return w.Watcher.Watch(ctx, key, opts...)
}

// The token with which the stream of the watches began has expired. A watch that stays keeps this
// stream open. Further watches work nevertheless, after one that is refused.
func TestWatch_TokenExpired(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	w := &expiring{Watcher: client.Watcher, expired: make(map[string]bool)}
	client.Watcher = w
	b := open(t, client)
	_, stop, err := b.Watch(t.Context(), "leader")
	ok(t, "Watch", err)
	defer stop()
	w.mu.Lock()
	for stream := range w.expired {
		w.expired[stream] = true
	}
	w.mu.Unlock()
	changed, stop, err := b.Watch(t.Context(), "k")
	ok(t, "Watch", err)
	defer stop()
	if _, more := <-changed; more {
		t.Error("a watch that is refused signals")
	}
	changed, stop, err = b.Watch(t.Context(), "k")
	ok(t, "Watch", err)
	defer stop()
	_, err = client.Put(t.Context(), "k", "text")
	ok(t, "Put", err)
	if _, more := <-changed; !more {
		t.Error("the next watch is refused, too")
	}
}

// stuckWatcher is the Watcher of a client whose watches go to a member that hangs.
type stuckWatcher struct {
	clientv3.Watcher
	asked chan struct{}
}

func (w stuckWatcher) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	select {
	case w.asked <- struct{}{}:
	default:
	}
	<-ctx.Done()
	over := make(chan clientv3.WatchResponse)
	close(over)
	return over
}

// A member that hangs costs a waiter at most a quarter of the time-out. The key is free meanwhile,
// and the waiter gets it.
func TestWatch_MemberHangs(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	k, err := locker(t, etcd.Client()).Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	ok(t, "Acquire", err)
	client := etcd.Client()
	w := stuckWatcher{client.Watcher, make(chan struct{}, 1)}
	client.Watcher = w
	waiting := locker(t, client) // its time-out is 20 s
	got := make(chan error, 1)
	go func() {
		_, err := waiting.Acquire(t.Context(), "k", core.WithWait(15*time.Second))
		got <- err
	}()
	<-w.asked
	ok(t, "Release", k.Release(t.Context()))
	ok(t, "Acquire of a key that is free", <-got)
}
