package etcdbackend_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/testutil"
)

func TestNew_Errors(t *testing.T) {
	t.Parallel()
	for _, o := range []core.Opener{etcdbackend.New(nil), etcdbackend.New(&clientv3.Client{}, nil, etcdbackend.WithTimeout(0))} {
		if _, err := core.New(o); err == nil || !strings.Contains(err.Error(), "etcdbackend: ") {
			t.Errorf("New: %v", err)
		}
	}
}

// A key or value that does not fit is refused before anything is sent.
func TestLimits(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	b := open(t, client)
	_, err := b.Acquire(t.Context(), request(strings.Repeat("k", 4000), time.Minute, 0))
	want(t, "a long key", err, core.ErrInvalidKey)
	g := acquire(t, b, request("k", time.Minute, 0))
	largest := bytes.Repeat([]byte{'v'}, 5<<18)
	err = b.Seal(t.Context(), g, append(largest, 'v'), time.Minute)
	if err == nil || errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), `"k"`) || !strings.Contains(err.Error(), "1310720") {
		t.Errorf("a large seal: %v", err)
	}
	if status(b, "k") != core.Held {
		t.Error("the lock is gone")
	}
	ok(t, "the largest seal", b.Seal(t.Context(), g, largest, time.Minute))
	st, err := b.Inspect(t.Context(), "k")
	if ok(t, "Inspect", err); !bytes.Equal(st.Value, largest) {
		t.Errorf("the seal has %d bytes", len(st.Value))
	}
}

// A key of another program, or of a newer version, is left alone.
func TestForeignValue_IsLeftAlone(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	b := open(t, client)
	for _, text := range []string{"", "text", "{}\n", `{"onelane":2,"state":"held"}` + "\n", `{"onelane":1,"state":"other"}` + "\n",
		`{"onelane":1,"state":"held","owner":"billing/1","ttl_ms":9223372036854775807}` + "\n"} {
		_, err := client.Put(t.Context(), "k", text)
		ok(t, "Put", err)
		_, err = b.Acquire(t.Context(), request("k", time.Minute, 0))
		want(t, "Acquire", err, core.ErrInvalidKey)
		want(t, "Unseal", b.Unseal(t.Context(), "k"), core.ErrInvalidKey)
		if resp, err := client.Get(t.Context(), "k"); err != nil || string(resp.Kvs[0].Value) != text {
			t.Errorf("%q was changed: %v", text, err)
		}
	}
}

// A server that hangs costs a call its time-out at most, and the caller's context ends it sooner.
func TestTimeout_ServerHangs(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	b := open(t, etcd.Client(), etcdbackend.WithTimeout(400*time.Millisecond))
	// From a backend with the default time-out: this call must succeed on a slow machine, too.
	g := acquire(t, open(t, etcd.Client()), request("k", time.Minute, 0))
	etcd.Stop()
	_, err := b.Acquire(t.Context(), request("k", time.Minute, 0))
	want(t, "Acquire", err, core.ErrUnavailable)
	_, err = b.Release(t.Context(), g)
	want(t, "Release", err, core.ErrUnavailable)
	_, _, err = b.Watch(t.Context(), "k")
	want(t, "Watch", err, core.ErrUnavailable)
	want(t, "Ping", b.Ping(t.Context()), core.ErrUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = b.Inspect(ctx, "k")
	want(t, "Inspect", err, core.ErrUnavailable)
	want(t, "Inspect", err, context.DeadlineExceeded)
	etcd.Cont()
	eventually(t, "Release", func() bool {
		_, err := b.Release(t.Context(), g)
		return err == nil || errors.Is(err, core.ErrLost)
	})
	// The attempt that got no answer may get the key now, until it is cleaned up.
	eventually(t, "the key is free again", func() bool { return status(b, "k") == core.Free })
}

// A permanent error of etcd ends the call at once, and its text says what to do.
func TestPermanentErrors_SayWhatToDo(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t, "--max-request-bytes", "2000")
	if etcd == nil {
		return
	}
	b := open(t, etcd.Client())
	g := acquire(t, b, request("k", time.Minute, 0))
	err := b.Seal(t.Context(), g, make([]byte, 10_000), time.Minute)
	u, ok := errors.AsType[*core.UnavailableError](err)
	if !ok || !u.Permanent || !strings.Contains(err.Error(), "--max-request-bytes") {
		t.Errorf("Seal: %#v", err)
	}
}

// hungKV does not answer.
type hungKV struct{ clientv3.KV }

func (hungKV) Get(ctx context.Context, _ string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// The client of an embedded etcd (v3client.New) has no connection.
func TestTimeout_ClientWithoutConnection(t *testing.T) {
	t.Parallel()
	client := clientv3.NewCtxClient(t.Context())
	client.KV = hungKV{}
	b := open(t, client, etcdbackend.WithTimeout(100*time.Millisecond))
	_, err := b.Inspect(t.Context(), "k")
	want(t, "Inspect", err, core.ErrUnavailable)
}
