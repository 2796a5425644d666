package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/ownertext"
)

// Passwords are read from the environment, since others can see a command line.
const (
	passwordEnv = "ONELANE_REDIS_PASSWORD"
	// sentinelPasswordEnv is read if the Sentinels have another password.
	sentinelPasswordEnv = "ONELANE_SENTINEL_PASSWORD"
)

// clients are one for one Redis, a cluster or Sentinel, and several for a quorum.
type clients []redis.UniversalClient

func (cs clients) opener(timeout time.Duration) core.Opener {
	b := redisbackend.New(cs...)
	b.NodeTimeout = timeout
	return b
}

func (cs clients) Close() (err error) {
	for _, c := range cs {
		err = errors.Join(err, c.Close())
	}
	return err
}

func (s servers) openRedis() (place, error) {
	var nodes []*redis.Options
	for _, at := range strings.Split(s.redis, ",") {
		o := &redis.Options{Addr: at}
		if strings.Contains(at, "://") {
			var err error
			if o, err = redis.ParseURL(at); err != nil {
				return nil, fmt.Errorf("-redis: %w", err)
			}
		}
		if o.Addr == "" {
			return nil, fmt.Errorf("-redis %q: an address is empty", s.redis)
		}
		if o.Password == "" {
			o.Password = os.Getenv(passwordEnv)
		}
		o.ContextTimeoutEnabled = true
		nodes = append(nodes, o)
	}
	first := nodes[0]
	addrs := make([]string, len(nodes))
	for i, o := range nodes {
		addrs[i] = o.Addr
	}
	switch {
	case s.cluster && s.sentinel != "":
		return nil, errors.New("-cluster and -sentinel exclude each other")
	case s.cluster:
		return clients{redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: addrs, Username: first.Username, Password: first.Password, TLSConfig: first.TLSConfig,
			ContextTimeoutEnabled: true,
		})}, nil
	case s.sentinel != "":
		return clients{redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: s.sentinel, SentinelAddrs: addrs, DB: first.DB,
			Username: first.Username, Password: first.Password, TLSConfig: first.TLSConfig,
			SentinelPassword: os.Getenv(sentinelPasswordEnv),
			MaxRetries:       1, DialerRetries: 1, // each asks all Sentinels again
			ContextTimeoutEnabled: true,
		})}, nil
	}
	all := make(clients, len(nodes))
	for i, o := range nodes {
		all[i] = redis.NewClient(o)
	}
	return all, nil
}

// scan implements place. It asks all masters.
func (cs clients) scan(ctx context.Context, s search) (keys []string, more bool, err error) {
	var mu sync.Mutex
	found := make(map[string]bool)
	master := func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); ; {
			names, next, err := c.Scan(ctx, cursor, pattern(s.prefix, s.start), 500).Result()
			if err != nil {
				return fmt.Errorf("%s: %w", c.Options().Addr, err)
			}
			if s.held {
				if names, err = withoutSeals(ctx, c, names); err != nil {
					return fmt.Errorf("%s: %w", c.Options().Addr, err)
				}
			}
			mu.Lock()
			for _, name := range names {
				if key, ok := userKey(s.prefix, name); ok {
					found[key] = true
				}
			}
			enough := len(found) > s.limit
			mu.Unlock()
			if cursor = next; cursor == 0 || enough {
				return nil
			}
		}
	}
	// A master that cannot be reached must leave time to look at the keys of the others.
	if end, ok := ctx.Deadline(); ok && len(cs) > 1 {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		ctx = half
	}
	errs := make([]error, len(cs))
	var asked sync.WaitGroup
	for i, c := range cs {
		asked.Go(func() {
			switch c := c.(type) {
			case *redis.ClusterClient:
				errs[i] = c.ForEachMaster(ctx, master)
			case *redis.Client:
				errs[i] = master(ctx, c)
			}
		})
	}
	asked.Wait()
	err = errors.Join(errs...)
	for key := range found {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if more = len(keys) > s.limit; more {
		keys = keys[:s.limit]
	}
	return keys, more, err
}

// withoutSeals returns the names whose values are no seals.
func withoutSeals(ctx context.Context, c *redis.Client, names []string) ([]string, error) {
	first := make([]*redis.StringCmd, len(names))
	_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its error
		for i, name := range names {
			first[i] = p.GetRange(ctx, name, 0, 63)
		}
		return nil
	})
	others := names[:0]
	for i, name := range names {
		value, err := first[i].Result()
		switch {
		case redis.HasErrorPrefix(err, "WRONGTYPE"): // not ours
			continue
		case redis.HasErrorPrefix(err, "MOVED"), redis.HasErrorPrefix(err, "ASK"): // its slot moves, and Inspect follows
		case err != nil:
			return nil, err
		}
		if !strings.HasPrefix(value, "\x00") {
			others = append(others, name)
		}
	}
	return others, nil
}

var (
	escape  = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D") // as core writes keys
	literal = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
)

// pattern matches the names in Redis of the keys that begin with start. A token counter does not end
// with a brace.
func pattern(prefix, start string) string {
	if prefix == "" {
		return literal.Replace(start) + "*"
	}
	return literal.Replace(prefix+"{"+escape.Replace(start)) + "*}"
}

// userKey returns the key that a name in Redis stands for.
func userKey(prefix, name string) (string, bool) {
	if prefix == "" {
		return name, !strings.ContainsAny(name, "{}") // {key}:fence
	}
	return ownertext.Key(name), strings.HasPrefix(name, prefix+"{") && strings.HasSuffix(name, "}")
}

// alone returns an error if the one Redis is a master of a quorum on which the key was free or used
// a moment ago. The backend itself notices a key that is held there.
func (cs clients) alone(ctx context.Context, prefix, key string) error {
	one, ok := cs[0].(*redis.Client)
	if !ok || len(cs) > 1 {
		return nil
	}
	if prefix != "" {
		key = escape.Replace(key)
	}
	n, err := one.Exists(ctx, prefix+"{"+key+"}:promise").Result()
	if err == nil && n > 0 {
		err = fmt.Errorf("key %q: %s is one master of a quorum and does not decide alone; name all masters with -redis", key, one.Options().Addr)
	}
	return err
}
