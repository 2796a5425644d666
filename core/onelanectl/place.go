package main

import (
	"context"
	"errors"
	"time"

	"github.com/onelane/onelane/core"
)

// servers says where the locks are.
type servers struct {
	redis, sentinel string
	cluster         bool
	etcd            string
	zookeeper, root string
	sql             string
}

// place is where the locks are: Redis, etcd, ZooKeeper or a table of a database.
type place interface {
	// opener returns the backend. timeout bounds each call.
	opener(timeout time.Duration) core.Opener
	// scan returns up to limit keys that begin with start, sorted, and whether there are more. If only
	// held and orphaned keys are wanted, it may leave out sealed ones. With an error it returns what
	// was found before.
	scan(ctx context.Context, s search) (keys []string, more bool, err error)
	Close() error
}

// search says which keys are wanted.
type search struct {
	prefix, start string
	limit         int
	held          bool
}

// open makes the clients. They connect when they are used.
func (s servers) open() (place, error) {
	kinds := 0
	for _, named := range []bool{s.etcd != "", s.zookeeper != "", s.sql != "", s.cluster || s.sentinel != ""} {
		if named {
			kinds++
		}
	}
	switch {
	case kinds > 1:
		return nil, errors.New("name one kind of server: -redis, -redis with -cluster or -sentinel, -etcd, -zookeeper, or -sql")
	case s.sql != "":
		return openSQL(s.sql)
	case s.etcd != "":
		return openEtcd(s.etcd)
	case s.zookeeper != "":
		return openZooKeeper(s.zookeeper, s.root)
	}
	return s.openRedis()
}
