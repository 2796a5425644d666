package core

import (
	"bytes"
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/go-redis/v9"
)

const (
	defaultNodeTimeout = time.Second
	tokenBlock         = 256                                 // fencing tokens reserved per lease
	fenceLife          = time.Hour                           // a fence counter outlives its last lease by this; then the server's clock takes over
	fenceLifeMillis    = int64(fenceLife / time.Millisecond) // a constant needs no memory as an argument
)

// Each verb is one script, and so one atomic step and one round trip.
var (
	//go:embed tell.lua
	tellSource string // before the scripts that free a key
	//go:embed acquire.lua
	acquireSource string
	//go:embed extend.lua
	extendSource string
	//go:embed release.lua
	releaseSource string
	//go:embed seal.lua
	sealSource string
	//go:embed unseal.lua
	unsealSource string
	//go:embed inspect.lua
	inspectSource string

	acquireScript = newScript(2, "", acquireSource)
	extendScript  = newScript(1, "", extendSource)
	releaseScript = newScript(1, tellSource, releaseSource)
	sealScript    = newScript(1, tellSource, sealSource)
	unsealScript  = newScript(2, tellSource, unsealSource)
	inspectScript = newScript(2, "", inspectSource)
)

// redisBackend is the Backend on one Redis, and one node of a quorum.
type redisBackend struct {
	node     node
	err      error // why it cannot work; reported by New and by every call
	timeout  time.Duration
	timeouts *timeouts
	logger   *slog.Logger
	jitter   func(time.Duration) time.Duration
	sharded  bool     // its pub/sub
	breaker  *breaker // of a node of a quorum, else nil
	cleaning *cleaning
	done     context.Context
	stop     context.CancelFunc
	unwarn   func() bool
}

// Clients is the Backend on go-redis clients: one Redis, Redis Cluster or Sentinel; or, with three and more, a Redlock quorum of
// independent masters, on which a majority decides (use 3 or 5; two are refused, and so is one that was passed twice). The client's own connection pool
// is used, but for renewals, which have a small one of their own, so that they never wait behind the application's
// commands. Waiters are woken by pub/sub, over one more connection for each Redis while there are any; on a Redis Cluster
// that is 7.0 or later, by sharded pub/sub on the key's own shard. The clients stay yours to close, after the Locker.
//
// A *redis.Client is used through a copy with options of its own, which go-redis makes without the client's hooks (AddHook): they do not
// see these calls. The spans and metrics of the Locker do, see [WithTracerProvider].
func Clients(clients ...redis.UniversalClient) Backend {
	nodes := make([]node, len(clients))
	for i, c := range clients {
		if _, ring := c.(*redis.Ring); ring {
			b := newRedisBackend(nil)
			b.err = errors.New("core: a redis.Ring gives a key to another master when the key's own does not answer, so that two could hold it: use one Redis, a Redis Cluster or Sentinel")
			return b
		}
		if v := reflect.ValueOf(c); c != nil && !(v.Kind() == reflect.Pointer && v.IsNil()) {
			nodes[i] = newClientNode(c)
		}
	}
	if err := distinct(clients); err != nil {
		b := newRedisBackend(nil)
		b.err = err
		return b
	}
	switch b := newBackend(nodes).(type) {
	case *redisBackend:
		if b.err != nil {
			return b
		}
		cluster, ok := clients[0].(*redis.ClusterClient)
		b.sharded = ok
		return &wokenRedis{b, cluster, clients[0], newShards()}
	case *quorum:
		return newWokenQuorum(b, clients)
	default:
		return b
	}
}

// distinct is an error where one Redis was passed twice to a quorum. One that goes by two names is found when it answers.
func distinct(clients []redis.UniversalClient) error {
	seen := make(map[string]int)
	for i, c := range clients {
		one, ok := c.(*redis.Client)
		if !ok || one == nil || one.Options().Addr == "FailoverClient" || len(clients) < 3 { // that name is of all Sentinel clients
			continue
		}
		addr := one.Options().Addr
		if j, again := seen[addr]; again {
			return fmt.Errorf("core: %w", twice(j, i, "at "+addr))
		}
		seen[addr] = i
	}
	return nil
}

// Pools is the Backend on any pool that redsync can use: go-redis, redigo, rueidis, valkey.
// Three and more are a quorum, as with [Clients]. Waiters poll, since such a pool has no pub/sub. Switch off the retries of the
// pool's own client (go-redis: MaxRetries -1): when it sends a release again after a lost reply, without saying so, the key is
// found gone, and Release reports [ErrLost]. The tries made here are counted.
func Pools(pools ...redsyncredis.Pool) Backend {
	nodes := make([]node, len(pools))
	for i, p := range pools {
		if p != nil {
			nodes[i] = &poolNode{pool: p}
		}
	}
	return newBackend(nodes)
}

// newBackend is one node or a quorum of them. Two are refused as a mistake.
func newBackend(nodes []node) Backend {
	if len(nodes) < 3 {
		return newRedisBackend(nodes)
	}
	return newQuorum(nodes)
}

func newRedisBackend(nodes []node) *redisBackend {
	b := &redisBackend{timeout: defaultNodeTimeout, timeouts: new(timeouts), logger: slog.Default(), jitter: jitter, cleaning: newCleaning(maxCleaning)}
	b.done, b.stop = context.WithCancel(context.Background())
	switch len(nodes) {
	case 0:
		b.err = errors.New("core: a backend needs a Redis: pass core.Clients or core.Pools at least one")
	case 1:
		if b.node = nodes[0]; b.node == nil {
			b.err = errors.New("core: the Redis client or pool is nil")
		}
	default:
		b.err = errors.New("core: two Redis masters cannot outvote each other: use one, or an odd number from three on")
	}
	return b
}

// open returns the backend as a Locker uses it.
func (b *redisBackend) open(c *config) (Backend, error) {
	if b.err != nil {
		return nil, b.err
	}
	opened := *b
	opened.cleaning = newCleaning(maxCleaning)
	opened.timeouts = new(timeouts)
	opened.done, opened.stop = context.WithCancel(context.Background())
	opened.logger, opened.jitter = c.logger, c.chance.jitter
	if c.nodeTimeout > 0 {
		opened.timeout = c.nodeTimeout
	}
	if b.breaker != nil {
		opened.breaker = newBreaker(opened.timeout)
	}
	if single, ok := b.node.(*clientNode); c.pipelined || b.breaker != nil && ok && single.direct != nil { // a quorum multiplies the calls
		opened.cleaning = newCleaning(maxCleaning * fullBatch) // a batch is given up as a whole
		opened.timeouts.looksAtParent = true
		var err error
		if opened.node, err = newPipelinedNode(b.node); err != nil {
			return nil, err
		}
	}
	opened.unwarn = opened.warnOfEviction()
	return &opened, nil
}

// Close ends the clean-ups under way and the connections that are the backend's own.
func (b *redisBackend) Close() error {
	b.stop()
	if b.unwarn != nil {
		b.unwarn()
	}
	if b.node == nil {
		return nil
	}
	return b.node.close()
}

func (b *redisBackend) Acquire(ctx context.Context, key, owner string, ttl time.Duration) (Grant, error) {
	r, err := b.call(ctx, key, acquireScript, []string{key, companion(key, "fence")},
		owner, millis(ttl), millis(ttl+fenceLife))
	if err == nil {
		switch r.status {
		case 1:
			g := Grant{Key: key, Owner: owner, Tokens: tokenBlock, Deadline: deadline(r.sent, ttl)}
			var last uint64
			last, err = r.uint(1)
			g.Token = last - tokenBlock + 1
			if err == nil && time.Now().Before(g.Deadline) {
				return g, nil
			}
			if err == nil {
				err = b.unavailable(key, errors.New("the answer came when the lease was about to end"))
			}
		case 2:
			holder, tag := splitOwner(r.text(1))
			return Grant{}, &TakenError{Key: key, Holder: holder, Tag: tag, RetryAfter: r.millis(2)}
		case 3:
			token, value := unpackSeal(r.text(1))
			return Grant{}, &SealedError{Key: key, Value: value, Token: token, ExpiresIn: r.millis(2)}
		default:
			err = r.unexpected(key)
		}
	}
	if errors.Is(err, ErrInvalidKey) || (refused(err) || errors.Is(err, errNotSent)) && !r.retried { // a try before may have had its effect
		return Grant{}, err
	}
	b.cleanUp(Grant{Key: key, Owner: owner}, ttl, r.late)
	return Grant{}, err
}

func (b *redisBackend) Extend(ctx context.Context, g Grant, ttl time.Duration) (Grant, error) {
	r, err := b.call(ctx, g.Key, extendScript, []string{g.Key}, g.Owner, millis(ttl))
	if err != nil {
		return g, lostIfForeign(err)
	}
	switch r.status {
	case 1:
		if d := deadline(r.sent, ttl); d.After(g.Deadline) {
			g.Deadline = d
		}
		return g, nil
	case 2, 4:
		return g, r.lost()
	default:
		return g, r.unexpected(g.Key)
	}
}

func (b *redisBackend) Release(ctx context.Context, g Grant) error {
	r, err := b.call(ctx, g.Key, releaseScript, []string{g.Key}, g.Owner, b.channel(g.Key))
	if err != nil {
		if err = lostIfForeign(err); !errors.Is(err, ErrLost) && !refused(err) {
			b.cleanUp(g, time.Until(g.Deadline), r.late)
		}
		return err
	}
	switch r.status {
	case 1:
		return nil
	case 3:
		if token, _ := unpackSeal(r.text(1)); token >= g.Token && token < g.Token+max(g.Tokens, 1) {
			return nil // by us: a seal whose reply was lost
		}
		return r.lost()
	case 2, 4:
		if r.retried && time.Now().Before(g.Deadline) {
			return nil // by us, and perhaps taken since: the reply to the try before was lost
		}
		return r.lost()
	default:
		return r.unexpected(g.Key)
	}
}

func (b *redisBackend) Seal(ctx context.Context, g Grant, token uint64, value []byte, retention time.Duration) error {
	r, err := b.call(ctx, g.Key, sealScript, []string{g.Key},
		g.Owner, b.channel(g.Key), packSeal(token, value), millis(retention))
	if err != nil {
		return lostIfForeign(err)
	}
	switch r.status {
	case 1:
		return nil
	case 2, 3, 4:
		return r.lost()
	default:
		return r.unexpected(g.Key)
	}
}

func (b *redisBackend) Unseal(ctx context.Context, key string) error {
	r, err := b.call(ctx, key, unsealScript, []string{key, companion(key, "fence")}, b.channel(key), fenceLifeMillis)
	if err == nil && r.status != 1 && r.status != 4 {
		err = r.unexpected(key)
	}
	return err
}

func (b *redisBackend) Inspect(ctx context.Context, key string) (State, error) {
	r, err := b.call(ctx, key, inspectScript, []string{key, companion(key, "fence")})
	if err != nil {
		return State{}, err
	}
	switch r.status {
	case 2:
		token, err := r.uint(3)
		return State{Status: Held, Owner: r.text(1), Token: token, ExpiresIn: r.millis(2)}, err
	case 3:
		token, value := unpackSeal(r.text(1))
		return State{Status: Sealed, Token: token, Value: value, ExpiresIn: r.millis(2)}, nil
	case 4:
		return State{Status: Free}, nil
	default:
		return State{}, r.unexpected(key)
	}
}

// deadline is until when a lease granted by a request sent then is certain to be valid: less 1 % and 2 ms for clocks
// that run at different speeds (Redlock).
func deadline(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// channel is where waiters for a key listen.
func (b *redisBackend) channel(key string) string {
	if b.sharded {
		return companion(key, "free:s")
	}
	return companion(key, "free")
}

// millis is d as Redis counts it, rounded up.
func millis(d time.Duration) int64 { return int64(math.Ceil(float64(d) / float64(time.Millisecond))) }

// A sealed key holds a NUL byte, which no owner begins with, the token in decimal, a colon and the value.
func packSeal(token uint64, value []byte) []byte {
	b := make([]byte, 0, 22+len(value))
	b = append(b, 0)
	b = strconv.AppendUint(b, token, 10)
	b = append(b, ':')
	return append(b, value...)
}

func unpackSeal(seal string) (token uint64, value []byte) {
	number, rest, ok := bytes.Cut([]byte(strings.TrimPrefix(seal, "\x00")), []byte(":"))
	if !ok {
		return 0, number
	}
	token, _ = strconv.ParseUint(string(number), 10, 64) // 0 is no token of ours
	return token, rest
}
