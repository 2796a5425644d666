package redisbackend_test

import (
	"context"
	"errors"
	"net"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/testutil"
)

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// The table of docs/backends.md has exactly the options that a go-redis client can have.
func TestClientOptions_AllInTheTable(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"../../docs/backends.md", "../../docs/zh-CN/backends.md"} {
		text, err := os.ReadFile(page)
		ok(t, "ReadFile", err)
		_, table, _ := strings.Cut(string(text), "| `redis.Options` |")
		table, _, _ = strings.Cut(table, "\n\n")
		options := reflect.TypeFor[redis.Options]()
		for i := range options.NumField() {
			name := options.Field(i).Name
			if options.Field(i).IsExported() && !strings.Contains(table, "`"+name+"`") {
				t.Errorf("%s does not say what becomes of %s", page, name)
			}
		}
		for _, line := range strings.Split(table, "\n") {
			names, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
			for i, name := range strings.Split(names, "`") {
				if _, there := options.FieldByName(name); i%2 == 1 && !there {
					t.Errorf("%s names %s, which go-redis does not have", page, name)
				}
			}
		}
	}
}

// A DialTimeout of -1 is none.
func TestClientOptions_NoDialTimeout(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, one(newClient(t, &redis.Options{Addr: node.Addr(), DialTimeout: -1, Dialer: dial})))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
}

// A Dialer may fail with what another server answered, as that of a Sentinel client does. It is no
// answer of this Redis.
func TestClientOptions_DialerFailsWithAReply(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{redis.Nil, redis.TxFailedErr, driver.ReplyError("NOAUTH Authentication required.")} {
		l := locker(t, one(newClient(t, &redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, cause }})),
			core.WithOutageWait(0))
		_, err := l.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrUnavailable)
		want(t, "TryAcquire", err, cause)
	}
}

func TestClientOptions_UnixSocket(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/redis.sock"
	node := testutil.Redis(t, "--unixsocket", path)
	if !node.Real() {
		return // a miniredis has none
	}
	l := locker(t, one(newClient(t, &redis.Options{Addr: path})))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
}

// forgetful is a connection through a load balancer that forgets it after a while without a word.
type forgetful struct {
	net.Conn
	after time.Duration
	last  time.Time
	dead  bool
}

func (c *forgetful) Write(b []byte) (int, error) {
	now := time.Now()
	if c.dead = c.dead || !c.last.IsZero() && now.Sub(c.last) > c.after; c.dead {
		return len(b), nil
	}
	c.last = now
	return c.Conn.Write(b)
}

// A connection is not used after ConnMaxIdleTime.
func TestClientOptions_ConnMaxIdleTime(t *testing.T) {
	t.Parallel()
	const forgets = time.Second
	node := testutil.Redis(t)
	c := one(newClient(t, &redis.Options{Addr: node.Addr(), ConnMaxIdleTime: forgets / 4,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			cn, err := dial(ctx, network, addr)
			return &forgetful{Conn: cn, after: forgets}, err
		}}))
	c.NodeTimeout = time.Minute
	l := locker(t, c)
	for range 2 {
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		time.Sleep(forgets + forgets/4) // what is tested is that nothing happens for so long
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	k, err := l.Acquire(ctx, "k")
	ok(t, "Acquire", err)
	ok(t, "Release", k.Release(ctx))
}

// breaker is a Limiter that is open or not.
type breaker struct {
	open     atomic.Bool
	asked    atomic.Int64
	failures atomic.Int64
}

var errOpen = errors.New("the breaker is open")

func (b *breaker) Allow() error {
	b.asked.Add(1)
	if b.open.Load() {
		return errOpen
	}
	return nil
}

func (b *breaker) ReportResult(err error) {
	if err != nil {
		b.failures.Add(1)
	}
}

// The client's Limiter is asked, and hears of failures only. The answer to a SET is nil for a
// lock that is granted.
func TestClientOptions_Limiter(t *testing.T) {
	t.Parallel()
	node, b := testutil.Redis(t), new(breaker)
	l := locker(t, one(newClient(t, &redis.Options{Addr: node.Addr(), Limiter: b})), core.WithOutageWait(0))
	ok(t, "Release", acquire(t, l, "k", core.WithOutageWait(time.Minute)).Release(t.Context()))
	if b.asked.Load() == 0 || b.failures.Load() > 0 {
		t.Errorf("the Limiter was asked %d times, and told of %d failures", b.asked.Load(), b.failures.Load())
	}
	b.open.Store(true)
	_, err := l.Acquire(t.Context(), "k")
	want(t, "Acquire", err, core.ErrUnavailable)
	want(t, "Acquire", err, errOpen)
}

// A panic of what the application passed to go-redis is the error of a call.
func TestClientOptions_Panics(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	for name, o := range map[string]*redis.Options{
		"Dialer":                     {Dialer: func(context.Context, string, string) (net.Conn, error) { panic("boom") }},
		"CredentialsProvider":        {CredentialsProvider: func() (string, string) { panic("boom") }},
		"CredentialsProviderContext": {CredentialsProviderContext: func(context.Context) (string, string, error) { panic("boom") }},
		"OnConnect":                  {OnConnect: func(context.Context, *redis.Conn) error { panic("boom") }},
		"Limiter":                    {Limiter: new(boom)},
	} {
		o.Addr = node.Addr()
		l := locker(t, one(newClient(t, o)), core.WithOutageWait(0))
		_, err := l.Acquire(t.Context(), "k")
		want(t, name, err, core.ErrUnavailable)
		if err == nil || !strings.Contains(err.Error(), name+" of the Redis client panicked: boom") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type boom struct{}

func (*boom) Allow() error       { panic("boom") }
func (*boom) ReportResult(error) { panic("boom") }
