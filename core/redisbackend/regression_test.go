package redisbackend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/ownertext"
	"github.com/onelane/onelane/testutil"
)

// filter is a proxy that asks about every chunk that a client sends, and slows down replies.
type filter struct {
	net.Listener
	mu      sync.Mutex
	request func(b []byte) (lose, cut bool, delay time.Duration)
	chunk   int           // replies come in chunks of this size
	every   time.Duration // one in this time
}

func newFilter(t testing.TB, target string) *filter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	f := &filter{Listener: l}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.serve(c, target)
		}
	}()
	return f
}

func (f *filter) set(request func([]byte) (bool, bool, time.Duration)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.request = request
}

func (f *filter) serve(client net.Conn, target string) {
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	go func() {
		defer server.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			f.mu.Lock()
			var lose, cut bool
			var delay time.Duration
			asked := f.request != nil
			if asked { // under the lock: it counts
				lose, cut, delay = f.request(buf[:n])
			}
			f.mu.Unlock()
			if asked {
				if cut {
					_ = client.Close()
				}
				time.Sleep(delay)
				if lose {
					continue
				}
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	defer client.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		f.mu.Lock()
		chunk, every := f.chunk, f.every
		f.mu.Unlock()
		if chunk == 0 {
			chunk = n
		}
		for b := buf[:n]; len(b) > 0; {
			part := b[:min(chunk, len(b))]
			b = b[len(part):]
			time.Sleep(every)
			if _, err := client.Write(part); err != nil {
				return
			}
		}
	}
}

var (
	discard = slog.New(slog.DiscardHandler)
	meter   = noop.Meter{}
)

func attempt(key string, ttl, orphan time.Duration) core.Request {
	return core.Request{Key: key, Owner: ownertext.New("attack:1", "", orphan), TTL: ttl, Orphan: orphan}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// orphanOf leaves an orphan under key.
func orphanOf(t testing.TB, b core.Backend, key string) (g core.Grant) {
	t.Helper()
	eventually(t, "granted", func() bool { // a busy machine may answer when the lease is over
		var err error
		g, err = b.Acquire(t.Context(), attempt(key, 100*time.Millisecond, time.Hour))
		return err == nil
	})
	eventually(t, "orphaned", func() bool {
		st, err := b.Inspect(t.Context(), key)
		return err == nil && st.Status == core.Orphaned
	})
	return g
}

func proxied(t testing.TB, addr string) *redis.Client {
	// A PING that the proxy loses ends with the dial.
	return newClient(t, &redis.Options{Addr: addr, DialTimeout: time.Second})
}

// An adoption that nobody decided about must not free the orphan. Its replies are lost, or a Redis
// that hung runs it after its caller has gone.
func TestRegression_FailedAdoptionFreesOrphan(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	direct := open(t, one(node.Client()))
	p := newProxy(t, node.Addr())
	b := open(t, one(proxied(t, p.Addr().String())))
	w := attempt("warm", time.Minute, 0)
	w.Token = true
	_, err := b.Acquire(t.Context(), w)
	ok(t, "Acquire", err)
	for _, c := range []struct {
		key        string
		by         core.Backend
		fault, end func()
	}{
		{"cut", b, func() { p.cut.Store(1 << 20) }, func() { p.cut.Store(0) }},
		{"hung", direct, node.Stop, node.Cont},
	} {
		r := attempt(c.key, time.Minute, time.Hour)
		r.Adopt = orphanOf(t, direct, c.key).Owner
		c.fault()
		_, err = c.by.Acquire(within(t, time.Second), r)
		c.end()
		if err == nil {
			t.Fatalf("%s: the adoption succeeded", c.key)
		}
	}
	time.Sleep(4 * time.Second)
	for _, key := range []string{"cut", "hung"} {
		st, err := direct.Inspect(t.Context(), key)
		ok(t, "Inspect", err)
		if st.Status == core.Free {
			_, err := direct.Acquire(t.Context(), attempt(key, time.Minute, time.Hour))
			t.Fatalf("%s: the orphan is free by itself; the next plain Acquire answers %v", key, err)
		}
	}
}

// An adoption that cannot mint its token must not free the orphan.
func TestRegression_AdoptionWithoutTokenFreesOrphan(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	b := open(t, one(client))
	g := orphanOf(t, b, "k")
	ok(t, "SET", client.Set(t.Context(), "{k}:fence", "not a number", 0).Err())
	r := attempt("k", time.Minute, time.Hour)
	r.Adopt, r.Token = g.Owner, true
	_, err := b.Acquire(t.Context(), r)
	if err == nil {
		t.Fatal("a token was minted")
	}
	st, err := b.Inspect(t.Context(), "k")
	ok(t, "Inspect", err)
	if st.Status == core.Free {
		t.Fatal("the orphan is free by itself")
	}
}

// A counter that is a number, but no token, refuses the lock and must not leave it held.
func TestRegression_HugeCounterLeavesKeyHeld(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	b := open(t, one(client))
	ok(t, "SET", client.Set(t.Context(), "{k}:fence", "19000000000000000000", 0).Err())
	r := attempt("k", time.Minute, 0)
	r.Token = true
	_, err := b.Acquire(t.Context(), r)
	if err == nil {
		t.Fatal("a token was minted")
	}
	if !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("Acquire: %v is no error of the contract", err)
	}
	eventually(t, "the key is free after the error", func() bool {
		st, err := b.Inspect(t.Context(), "k")
		return err == nil && st.Status == core.Free
	})
}

// A user that may not TIME gets an error, and nothing stays held, nor is an orphan lost.
func TestRegression_ACLWithoutTime(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	direct := open(t, one(node.Client()))
	var commands []string
	for _, c := range append(append([]string(nil), neededCommands...), betterCommands...) {
		if c != "time" {
			commands = append(commands, c)
		}
	}
	b := open(t, one(restricted(t, node, commands)))
	r := attempt("onelane:{k}", time.Minute, 0)
	r.Token = true
	_, err := b.Acquire(t.Context(), r)
	if err == nil {
		t.Fatal("minted")
	}
	eventually(t, fmt.Sprintf("the key is free after %v", err), func() bool {
		st, err := direct.Inspect(t.Context(), r.Key)
		return err == nil && st.Status == core.Free
	})
	g := orphanOf(t, direct, "onelane:{o}")
	r = attempt(g.Key, time.Minute, time.Hour)
	r.Adopt, r.Token = g.Owner, true
	_, err = b.Acquire(t.Context(), r)
	time.Sleep(3 * time.Second)
	if st, e := direct.Inspect(t.Context(), r.Key); e != nil || st.Status == core.Free {
		t.Errorf("after the adoption failed (%v) the orphan is %v, %v", err, st.Status, e)
	}
}

// Token on a key whose counter is foreign is an error, but the lock is not lost.
func TestRegression_ForeignCounterIsNoLoss(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	b := open(t, one(client))
	g, err := b.Acquire(t.Context(), attempt("k", time.Minute, 0))
	ok(t, "Acquire", err)
	ok(t, "LPUSH", client.LPush(t.Context(), "{k}:fence", "x").Err())
	_, err = b.Mint(t.Context(), g)
	if errors.Is(err, core.ErrLost) {
		st, _ := b.Inspect(t.Context(), "k")
		t.Fatalf("Mint: %v, and the key is %v by us: %v", err, st.Status, st.Owner == g.Owner)
	}
}

// A key may have any text, WRONGTYPE too. Redis repeats the key in "unknown command 'delex', with args …".
func TestRegression_KeyNamedWrongtype(t *testing.T) {
	t.Parallel()
	l := locker(t, one(testutil.Redis(t).Client()))
	k := acquire(t, l, "WRONGTYPE")
	if err := k.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	time.Sleep(time.Second)
	if got := status(t, l, "WRONGTYPE"); got != core.Free {
		t.Errorf("after Release the key is %v", got)
	}
}

// A large value that comes in small segments, as over any real link, has the time that it needs while it comes.
func TestRegression_LargeReplyInSegments(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	direct := open(t, one(node.Client()))
	g, err := direct.Acquire(t.Context(), attempt("k", time.Minute, 0))
	ok(t, "Acquire", err)
	ok(t, "Seal", direct.(core.Sealer).Seal(t.Context(), g, bytes.Repeat([]byte("x"), 2<<20), time.Hour))
	f := newFilter(t, node.Addr())
	b := open(t, one(proxied(t, f.Addr().String())))
	_, err = b.Acquire(t.Context(), attempt("warm", time.Minute, 0))
	ok(t, "Acquire", err)
	f.mu.Lock()
	f.chunk, f.every = 1448, time.Millisecond // 1.4 MB/s or less
	f.mu.Unlock()
	// More than once where the machine stands still: a pause of 250 ms is an answer that does not come.
	eventually(t, "the answer of 2 MB comes", func() bool {
		_, err := b.Acquire(within(t, 20*time.Second), attempt("k", time.Minute, 0))
		return errors.Is(err, core.ErrSealed)
	})
}

// Every mix of verbs over connections that break: one holder, and tokens that increase.
func TestRegression_MixedVerbsOverBadConnections(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var proxies []*proxy
			var nodes testutil.Nodes
			if kind == "one" {
				nodes = testutil.Nodes{testutil.Redis(t)}
			} else {
				nodes = testutil.Cluster(t, 3)
			}
			for _, n := range nodes {
				proxies = append(proxies, newProxy(t, n.Addr()))
			}
			var holder atomic.Pointer[core.Grant]
			var mu sync.Mutex
			last := uint64(0)
			stop := make(chan struct{})
			var all, faults sync.WaitGroup
			for w := range 4 {
				var clients []redis.UniversalClient
				for _, p := range proxies {
					clients = append(clients, proxied(t, p.Addr().String()))
				}
				c := redisbackend.New(clients...)
				c.NodeTimeout = 300 * time.Millisecond
				c.NewInstallation = kind != "one"
				b := openQuorum(t, c, 10*time.Second)
				sealer, seals := b.(core.Sealer)
				all.Go(func() {
					for i := w; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
						r := attempt("k", 2*time.Second, 0)
						r.Token = i%2 == 0
						g, err := b.Acquire(ctx, r)
						cancel()
						if err != nil {
							if errors.Is(err, core.ErrSealed) && i%3 == 0 {
								_ = sealer.Unseal(context.Background(), "k")
							}
							time.Sleep(5 * time.Millisecond)
							continue
						}
						// A lease may end while a busy machine stands still: the holder does not know it yet.
						mine := new(core.Grant)
						*mine = g
						other := holder.Swap(mine)
						if now := time.Now(); other != nil && now.Before(other.Deadline) && now.Before(g.Deadline) {
							t.Errorf("two holders")
						}
						if g.Token == 0 && i%4 == 1 {
							if m, err := b.Mint(context.Background(), g); err == nil {
								g = m
							}
						}
						if g.Token != 0 {
							mu.Lock()
							if g.Token <= last && time.Now().Before(g.Deadline) {
								t.Errorf("token %d after %d", g.Token, last)
							}
							last = max(last, g.Token+g.Tokens-1)
							mu.Unlock()
						}
						if e, err := b.Extend(context.Background(), g, 2*time.Second); err == nil {
							g = e
						}
						holder.CompareAndSwap(mine, nil)
						if i%5 == 0 && seals {
							_ = sealer.Seal(context.Background(), g, []byte("v"), time.Minute)
						} else {
							_, _ = b.Release(context.Background(), g)
						}
					}
				})
			}
			faults.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					case <-time.After(15 * time.Millisecond):
					}
					p := proxies[i%len(proxies)]
					switch i % 4 {
					case 0:
						p.cut.Store(1)
					case 1:
						p.delay.Store(int64(40 * time.Millisecond))
					case 2:
						p.part.Store(3)
					}
				}
			})
			if long {
				time.Sleep(10 * time.Second)
			}
			time.Sleep(2 * time.Second)
			close(stop)
			all.Wait()
			faults.Wait()
		})
	}
}

// Close ends everything, even while Redis hangs and calls wait; a Release after it still works.
func TestRegression_CloseWhileHung(t *testing.T) {
	node := testutil.Redis(t)
	client := node.Client()
	before := runtime.NumGoroutine()
	var backends []core.Backend
	var held []core.Grant
	for i := range 5 {
		b, err := one(client).Open(core.Environment{TTL: time.Minute, Logger: discard, Meter: meter})
		ok(t, "Open", err)
		g, err := b.Acquire(t.Context(), attempt(fmt.Sprint("k", i), time.Minute, 0))
		ok(t, "Acquire", err)
		_, stop, err := b.Watch(t.Context(), "k")
		ok(t, "Watch", err)
		defer stop()
		backends, held = append(backends, b), append(held, g)
	}
	node.Stop()
	var all sync.WaitGroup
	for _, b := range backends {
		for i := range 20 {
			all.Go(func() { _, _ = b.Acquire(within(t, 300*time.Millisecond), attempt(fmt.Sprint("w", i), time.Minute, 0)) })
		}
	}
	time.Sleep(100 * time.Millisecond)
	for _, b := range backends {
		ok(t, "Close", b.Close())
	}
	all.Wait()
	node.Cont()
	for i, b := range backends {
		eventually(t, "Release after Close", func() bool { // a connection that was begun while the node hung may fail
			_, err := b.Release(t.Context(), held[i])
			return err == nil
		})
		ok(t, "Close", b.Close())
	}
	var n int
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if n = runtime.NumGoroutine(); n <= before+2 {
			break
		}
	}
	if n > before+2 {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	eventually(t, "no connection is left", func() bool {
		return strings.Count(client.ClientList(t.Context()).Val(), "\n") <= 3
	})
}

// The options of a client hold for the backend's own connections.
func TestRegression_ClientOptions(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	node := testutil.Redis(t, "--unixsocket", socket)
	ok(t, "CONFIG", node.Client().ConfigSet(t.Context(), "requirepass", "secret").Err())
	b := open(t, one(newClient(t, &redis.Options{Network: "unix", Addr: socket, Password: "secret", DB: 5, ClientName: "me"})))
	_, err := b.Acquire(t.Context(), attempt("k", time.Minute, 0))
	ok(t, "Acquire", err)
	admin := newClient(t, &redis.Options{Addr: node.Addr(), Password: "secret", DB: 5})
	if admin.Exists(t.Context(), "k").Val() != 1 {
		t.Error("not in DB 5")
	}
	if list := admin.ClientList(t.Context()).Val(); !bytes.Contains([]byte(list), []byte("name=me")) {
		t.Errorf("no client name: %s", list)
	}
}

// An Unseal that timed out and arrives later must not delete the record that a later holder sealed.
func TestRegression_DelayedUnsealDeletesLaterSeal(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	l, other := locker(t, one(proxied(t, p.Addr().String())), core.WithOutageWait(0)), locker(t, one(node.Client()))
	key, unsealed := "", true
	for i := 0; i < 3 && unsealed; i++ { // on a busy machine both the answer and the deadline may be there
		key = fmt.Sprint("k", i)
		ok(t, "Seal", acquire(t, l, key).Seal(t.Context(), []byte("first"), time.Hour))
		ok(t, "Unseal", l.Unseal(t.Context(), "warm"))
		p.delay.Store(int64(2 * time.Second))
		unsealed = l.Unseal(within(t, 300*time.Millisecond), key) == nil
	}
	if unsealed {
		t.Fatal("unsealed")
	}
	ok(t, "Unseal again", other.Unseal(t.Context(), key))
	ok(t, "Seal", acquire(t, other, key).Seal(t.Context(), []byte("second"), time.Hour))
	time.Sleep(3 * time.Second)
	if got := status(t, other, key); got != core.Sealed {
		t.Errorf("the record of the second holder is gone: the key is %v", got)
	}
}
