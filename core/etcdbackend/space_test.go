package etcdbackend_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// An etcd whose quota is used up grants nothing, and its keys can be released. It grants again when
// somebody has made room and ended the alarm.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t, "--quota-backend-bytes", "1000000")
	if etcd == nil {
		return
	}
	client := etcd.Client()
	b := open(t, client)
	g := acquire(t, b, request("k", time.Hour, 0))
	fill := strings.Repeat("x", 100_000)
	eventually(t, "the quota is used up", func() bool {
		_, err := client.Put(t.Context(), "fill", fill)
		return errors.Is(err, rpctypes.ErrNoSpace)
	})
	for what, call := range map[string]func() error{
		"Acquire": func() error {
			_, err := b.Acquire(t.Context(), request("other", time.Minute, 0))
			return err
		},
		"Extend": func() error {
			_, err := b.Extend(t.Context(), g, 2*time.Hour)
			return err
		},
	} {
		err := call()
		if want(t, what, err, core.ErrUnavailable); !strings.Contains(err.Error(), "NOSPACE alarm") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if status(b, "k") != core.Held {
		t.Error("the key is not held any more")
	}
	_, err := b.Release(t.Context(), g)
	ok(t, "Release", err)
	if status(b, "k") != core.Free {
		t.Error("the key is not free")
	}

	resp, err := client.Delete(t.Context(), "fill")
	ok(t, "Delete", err)
	_, err = client.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical())
	ok(t, "Compact", err)
	_, err = client.Defragment(t.Context(), etcd.Addr())
	ok(t, "Defragment", err)
	_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	ok(t, "AlarmDisarm", err)
	acquire(t, b, request("k", time.Hour, 0))
}
