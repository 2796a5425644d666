package etcdbackend_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// slowKV keeps the answer to the first transaction whose condition did not hold.
type slowKV struct {
	clientv3.KV
	once     sync.Once
	answered chan struct{}
	goOn     chan struct{}
}

type slowTxn struct {
	clientv3.Txn
	kv *slowKV
}

func (kv *slowKV) Txn(ctx context.Context) clientv3.Txn { return slowTxn{kv.KV.Txn(ctx), kv} }

func (t slowTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { return slowTxn{t.Txn.If(cs...), t.kv} }
func (t slowTxn) Then(ops ...clientv3.Op) clientv3.Txn { return slowTxn{t.Txn.Then(ops...), t.kv} }
func (t slowTxn) Else(ops ...clientv3.Op) clientv3.Txn { return slowTxn{t.Txn.Else(ops...), t.kv} }

func (t slowTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	if err == nil && !resp.Succeeded {
		t.kv.once.Do(func() {
			close(t.kv.answered)
			<-t.kv.goOn
		})
	}
	return resp, err
}

// An answer says that the key is held, and comes late. By then this process knows of a later holder,
// who has released the key since. Etcd works, and nobody gave the attempt up. So the caller gets the
// lock or ErrTaken. After ErrUnavailable, a request with FailOpen would run unprotected.
func TestAcquire_LateAnswerOfAFreeKey(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	slow := &slowKV{KV: client.KV, answered: make(chan struct{}), goOn: make(chan struct{})}
	client.KV = slow
	b, others := open(t, client), open(t, etcd.Client())

	first := acquire(t, others, request("k", time.Minute, 0))
	got := make(chan error, 1)
	go func() {
		g, err := b.Acquire(t.Context(), request("k", time.Minute, 0))
		if err == nil {
			_, err = b.Release(t.Context(), g)
		}
		got <- err
	}()
	<-slow.answered // "held by the first", on its way
	release := func(g core.Grant) {
		_, err := others.Release(t.Context(), g)
		ok(t, "Release", err)
	}
	release(first)
	second := acquire(t, others, request("k", time.Minute, 0))
	if s := status(b, "k"); s != core.Held { // or its watch saw the second holder
		t.Fatalf("the key is %v", s)
	}
	release(second)
	close(slow.goOn)
	if err := <-got; err != nil && !errors.Is(err, core.ErrTaken) {
		t.Errorf("the key is free, and etcd answers: %v", err)
	}
}
