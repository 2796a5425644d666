package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Passwords are read from the environment, since a command line can be seen by others.
const (
	passwordEnv         = "ONELANE_REDIS_PASSWORD"
	sentinelPasswordEnv = "ONELANE_SENTINEL_PASSWORD" // where the Sentinels have one of their own
)

// servers says where the locks are.
type servers struct {
	redis, sentinel string
	cluster         bool
}

type clients []redis.UniversalClient

// open makes the clients: one for one Redis, a cluster or Sentinel, several for a quorum.
func (s servers) open() (clients, error) {
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
		})}, nil
	case s.sentinel != "":
		return clients{redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: s.sentinel, SentinelAddrs: addrs, DB: first.DB,
			Username: first.Username, Password: first.Password, TLSConfig: first.TLSConfig,
			SentinelPassword: os.Getenv(sentinelPasswordEnv),
			MaxRetries:       1, DialerRetries: 1, // each asks all Sentinels again
		})}, nil
	}
	all := make(clients, len(nodes))
	for i, o := range nodes {
		all[i] = redis.NewClient(o)
	}
	return all, nil
}

// scan returns up to limit keys that begin with start, of all masters, sorted, and whether there are more. With an
// error it returns those that were found before.
func (cs clients) scan(ctx context.Context, prefix, start string, limit int) (keys []string, more bool, err error) {
	var mu sync.Mutex
	found := make(map[string]bool)
	pattern := pattern(prefix, start)
	master := func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); ; {
			names, next, err := c.Scan(ctx, cursor, pattern, 500).Result()
			if err != nil {
				return fmt.Errorf("%s: %w", c.Options().Addr, err)
			}
			mu.Lock()
			for _, name := range names {
				if key, ok := userKey(prefix, name); ok {
					found[key] = true
				}
			}
			enough := len(found) > limit
			mu.Unlock()
			if cursor = next; cursor == 0 || enough {
				return nil
			}
		}
	}
	for _, c := range cs {
		switch c := c.(type) {
		case *redis.ClusterClient:
			err = errors.Join(err, c.ForEachMaster(ctx, master))
		case *redis.Client:
			err = errors.Join(err, master(ctx, c))
		}
	}
	for key := range found {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if more = len(keys) > limit; more {
		keys = keys[:limit]
	}
	return keys, more, err
}

var (
	escape   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D") // as core writes keys
	unescape = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")
	literal  = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
)

// pattern matches the names in Redis of the keys that begin with start. A fence counter does not end with a brace.
func pattern(prefix, start string) string {
	if prefix == "" {
		return literal.Replace(start) + "*"
	}
	return literal.Replace(prefix+"{"+escape.Replace(start)) + "*}"
}

// userKey is the key that a name in Redis stands for.
func userKey(prefix, name string) (string, bool) {
	if prefix == "" {
		return name, !strings.ContainsAny(name, "{}") // {key}:fence
	}
	name, begins := strings.CutPrefix(name, prefix+"{")
	name, ends := strings.CutSuffix(name, "}")
	return unescape.Replace(name), begins && ends
}
