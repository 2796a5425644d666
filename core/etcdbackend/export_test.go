package etcdbackend

import (
	"context"
	"time"

	"github.com/onelane/onelane/core"
)

// LateAnswer reads a key, and uses the answer when between has returned. It returns how many changes
// of etcd the answer misses.
func LateAnswer(ctx context.Context, b core.Backend, key string, between func()) (missed int64, err error) {
	eb := b.(*backend)
	resp, err := eb.client.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	between()
	late, err := eb.entry(ctx, key, resp.Kvs, lazy)
	if err != nil {
		return 0, err
	}
	now, err := eb.read(ctx, key, lazy)
	return now.revision - late.revision, err
}

// Suspend makes b's machine one that was suspended for d just now.
func Suspend(b core.Backend, d time.Duration) {
	woke := time.Now()
	b.(*backend).ago = func(t, now time.Time) time.Duration {
		if t.Before(woke) {
			return now.Sub(t) + d
		}
		return now.Sub(t)
	}
}
