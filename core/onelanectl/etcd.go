package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
)

// The user and the password for etcd.
const (
	etcdUserEnv     = "ONELANE_ETCD_USER"
	etcdPasswordEnv = "ONELANE_ETCD_PASSWORD"
)

// etcdPlace is etcd. A key of a Locker is a key there.
type etcdPlace struct{ *clientv3.Client }

func openEtcd(endpoints string) (place, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(endpoints, ","),
		Username:  os.Getenv(etcdUserEnv), Password: os.Getenv(etcdPasswordEnv),
		DialTimeout: 3 * time.Second, DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		Logger: zap.NewNop(), // it logs what it returns
	})
	if err != nil {
		return nil, fmt.Errorf("-etcd: %w", err)
	}
	return etcdPlace{c}, nil
}

func (e etcdPlace) opener(timeout time.Duration) core.Opener {
	return etcdbackend.New(e.Client, etcdbackend.WithTimeout(timeout))
}

// scan implements place.
func (e etcdPlace) scan(ctx context.Context, s search) (keys []string, more bool, err error) {
	from := s.prefix + "{" + escape.Replace(s.start)
	if s.prefix == "" {
		from = s.start
	}
	begin, end := from, clientv3.GetPrefixRangeEnd(from)
	if from == "" {
		begin = "\x00" // and its end means all
	}
	for {
		page, err := e.Get(ctx, begin, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(500),
			clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
		if err != nil {
			return keys, false, fmt.Errorf("etcd at %s: %w", strings.Join(e.Endpoints(), ","), err)
		}
		for _, kv := range page.Kvs {
			begin = string(kv.Key) + "\x00"
			key, ok := userKey(s.prefix, string(kv.Key))
			if !ok || strings.Contains(key, "\x00") { // the mark of a void attempt
				continue
			}
			if !s.held && len(keys) == s.limit {
				slices.Sort(keys)
				return keys, true, nil
			}
			keys = append(keys, key)
		}
		if !page.More {
			slices.Sort(keys) // etcd sorts them as they are escaped
			return keys, false, nil
		}
	}
}
