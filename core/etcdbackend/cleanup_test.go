package etcdbackend_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// lostReplies is a client's KV that makes changes and loses their replies. It can also keep them
// back until they are let go.
type lostReplies struct {
	clientv3.KV
	lose func() (lost bool, late <-chan struct{})
	done chan error // of what was late
}

type lostTxn struct {
	clientv3.Txn
	kv *lostReplies
}

func (k *lostReplies) Txn(ctx context.Context) clientv3.Txn {
	return &lostTxn{k.KV.Txn(context.WithoutCancel(ctx)), k}
}

func (x *lostTxn) If(c ...clientv3.Cmp) clientv3.Txn  { x.Txn = x.Txn.If(c...); return x }
func (x *lostTxn) Then(o ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Then(o...); return x }
func (x *lostTxn) Else(o ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Else(o...); return x }

func (x *lostTxn) Commit() (*clientv3.TxnResponse, error) {
	lost, late := x.kv.lose()
	if late != nil {
		go func() {
			<-late
			_, err := x.Txn.Commit()
			x.kv.done <- err
		}()
		return nil, context.DeadlineExceeded
	}
	resp, err := x.Txn.Commit()
	if lost && err == nil {
		return nil, context.DeadlineExceeded
	}
	return resp, err
}

// lossy returns a client whose next n changes lose their replies.
func lossy(client *clientv3.Client, n int) (*clientv3.Client, *lostReplies) {
	k := &lostReplies{KV: client.KV, done: make(chan error, 1)}
	k.lose = func() (bool, <-chan struct{}) {
		n--
		return n >= 0, nil
	}
	client.KV = k
	return client, k
}

// An attempt whose reply was lost leaves nothing.
func TestCleanUp_LostReply(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client, _ := lossy(etcd.Client(), 1)
	b, other := open(t, client), open(t, etcd.Client())
	_, err := b.Acquire(t.Context(), request("k", time.Minute, time.Hour))
	want(t, "Acquire", err, core.ErrUnavailable)
	eventually(t, "the key is free", func() bool { return status(other, "k") == core.Free })
}

// An attempt that comes late, after its clean-up, has no effect.
func TestCleanUp_LateRequest(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	plain := etcd.Client()
	client, k := lossy(etcd.Client(), 0)
	late := make(chan struct{})
	first := true
	k.lose = func() (bool, <-chan struct{}) {
		if first {
			first = false
			return false, late
		}
		return false, nil
	}
	b := open(t, client)
	_, err := b.Acquire(t.Context(), request("k", time.Minute, time.Hour))
	want(t, "Acquire", err, core.ErrUnavailable)
	eventually(t, "the attempt is void", func() bool { return keys(t, plain, "k\x00") == 1 })
	close(late)
	ok(t, "the late request", <-k.done)
	if n := keys(t, plain, "k"); n != 1 {
		t.Errorf("%d keys, want only the mark", n)
	}
	acquire(t, b, request("k", time.Minute, 0))
}

// A failed adoption restores the orphan: nobody has looked after it.
func TestCleanUp_FailedAdoption(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	other := open(t, etcd.Client())
	g := acquire(t, other, request("k", time.Second, time.Hour))
	client, k := lossy(etcd.Client(), 0)
	b := open(t, client)
	eventually(t, "the key is orphaned", func() bool { return status(b, "k") == core.Orphaned })
	var changes atomic.Int64
	k.lose = func() (bool, <-chan struct{}) { // the second one adopts
		return changes.Add(1) == 2, nil
	}
	r := request("k", time.Minute, time.Hour)
	r.Adopt = g.Owner
	_, err := b.Acquire(t.Context(), r)
	want(t, "Acquire", err, core.ErrUnavailable)
	eventually(t, "the orphan is restored", func() bool {
		st, err := other.Inspect(t.Context(), "k")
		return err == nil && st.Status == core.Orphaned && st.Owner == g.Owner && st.ExpiresIn > 50*time.Minute
	})
	r.Owner = request("k", 0, 0).Owner
	acquire(t, b, r)
}

// The other verbs find out what their lost replies said.
func TestLostReply_IsResolved(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client, k := lossy(etcd.Client(), 0)
	lose := false
	k.lose = func() (bool, <-chan struct{}) {
		lost := lose
		lose = false
		return lost, nil
	}
	b := open(t, client)
	g := acquire(t, b, request("k", time.Minute, 0))
	lose = true
	longer, err := b.Extend(t.Context(), g, time.Hour)
	if ok(t, "Extend", err); time.Until(longer.Deadline) < 50*time.Minute {
		t.Errorf("the lease lasts %v", time.Until(longer.Deadline))
	}
	lose = true
	ok(t, "Seal", b.Seal(t.Context(), longer, []byte("v"), time.Minute))
	lose = true
	ok(t, "Unseal", b.Unseal(t.Context(), "k"))
	g = acquire(t, b, request("k", time.Minute, 0))
	lose = true
	_, err = b.Release(t.Context(), g)
	ok(t, "Release", err)
	_, err = b.Release(t.Context(), g)
	want(t, "second Release", err, core.ErrLost)
	if status(b, "k") != core.Free {
		t.Error("the key is not free")
	}
}

// Close waits for an Acquire under way, and frees what it may have got.
func TestClose_FreesWhatAnAcquireUnderWayGets(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	other := open(t, etcd.Client())
	attempt := func(key string) core.Status {
		client, k := lossy(etcd.Client(), 0)
		sent, goOn := make(chan struct{}), make(chan struct{})
		var once sync.Once
		k.lose = func() (lost bool, _ <-chan struct{}) {
			once.Do(func() {
				lost = true
				close(sent)
				<-goOn
			})
			return lost, nil
		}
		b := open(t, client)
		failed, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := b.Acquire(t.Context(), request(key, time.Hour, time.Hour))
			failed <- err
		}()
		<-sent
		go func() { closed <- b.Close() }()
		time.Sleep(100 * time.Millisecond) // Close has begun
		close(goOn)
		want(t, "Acquire", <-failed, core.ErrUnavailable)
		ok(t, "Close", <-closed)
		return status(other, key)
	}
	for _, key := range []string{"a", "b", "c"} { // Close gives up after a second
		if attempt(key) == core.Free {
			return
		}
	}
	t.Error("the keys stay held")
}

// noLeases is a client's Lease whose etcd grants none for a while.
type noLeases struct {
	clientv3.Lease
	refuse atomic.Bool
}

func (l *noLeases) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	if l.refuse.Load() {
		return nil, errors.New("out of reach")
	}
	return l.Lease.Grant(ctx, ttl)
}

// An attempt that has sent no change needs no clean-up.
func TestCleanUp_NothingWasSent(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	leases := &noLeases{Lease: client.Lease}
	leases.refuse.Store(true)
	client.Lease = leases
	b := open(t, client)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := b.Acquire(ctx, request("k", time.Minute, time.Hour))
	want(t, "Acquire", err, core.ErrUnavailable)
	leases.refuse.Store(false)
	ok(t, "Close", b.Close()) // waits for clean-ups
	if n := keys(t, etcd.Client(), "k\x00"); n != 0 {
		t.Errorf("%d void marks of an attempt that sent nothing", n)
	}
}

// refusing is a client's KV whose etcd refuses the first change. It counts the changes.
type refusing struct {
	clientv3.KV
	changes atomic.Int64
}

func (k *refusing) Txn(ctx context.Context) clientv3.Txn {
	if k.changes.Add(1) == 1 {
		return failedTxn{rpctypes.ErrPermissionDenied}
	}
	return k.KV.Txn(ctx)
}

// failedTxn is a transaction with this error.
type failedTxn struct{ err error }

func (x failedTxn) If(...clientv3.Cmp) clientv3.Txn  { return x }
func (x failedTxn) Then(...clientv3.Op) clientv3.Txn { return x }
func (x failedTxn) Else(...clientv3.Op) clientv3.Txn { return x }

func (x failedTxn) Commit() (*clientv3.TxnResponse, error) { return nil, x.err }

// An attempt that etcd refused needs no clean-up.
func TestCleanUp_Refused(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	kv := &refusing{KV: client.KV}
	client.KV = kv
	b := open(t, client)
	_, err := b.Acquire(t.Context(), request("k", time.Minute, time.Hour))
	want(t, "Acquire", err, core.ErrUnavailable)
	ok(t, "Close", b.Close()) // which waits for clean-ups
	if n := kv.changes.Load(); n != 1 {
		t.Errorf("%d changes, want the refused one alone", n)
	}
}

// outOfReach is a client's KV that no answer comes to. It counts the changes.
type outOfReach struct {
	clientv3.KV
	changes atomic.Int64
}

func (k *outOfReach) Txn(context.Context) clientv3.Txn {
	k.changes.Add(1)
	return failedTxn{errors.New("out of reach")}
}

// oneLease is a client's Lease that grants at once.
type oneLease struct{ clientv3.Lease }

func (oneLease) Grant(context.Context, int64) (*clientv3.LeaseGrantResponse, error) {
	return &clientv3.LeaseGrantResponse{ID: 1}, nil
}

// No answer comes from etcd for longer than the lease and ten minutes. The attempt may have left an orphan, so its
// clean-up goes on.
func TestCleanUp_GoesOnWhileTheOrphanMayBeThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		kv := &outOfReach{}
		b := open(t, &clientv3.Client{KV: kv, Lease: oneLease{}})
		_, err := b.Acquire(t.Context(), request("k", time.Minute, 24*time.Hour))
		want(t, "Acquire", err, core.ErrUnavailable)
		time.Sleep(20 * time.Minute)
		before := kv.changes.Load()
		time.Sleep(time.Minute)
		if kv.changes.Load() == before {
			t.Error("after 20 minutes the clean-up is given up, and the orphan would stay for a day")
		}
	})
}

// cutOnce is a client's KV whose first change has no answer. It counts the changes.
type cutOnce struct {
	clientv3.KV
	changes atomic.Int64
}

func (k *cutOnce) Txn(ctx context.Context) clientv3.Txn {
	if k.changes.Add(1) == 1 {
		return failedTxn{errors.New("cut off")}
	}
	return k.KV.Txn(ctx)
}

// A key that another program has written holds nothing of the attempt.
func TestCleanUp_ForeignValue(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	_, err := client.Put(t.Context(), "k", "foreign")
	ok(t, "Put", err)
	kv := &cutOnce{KV: client.KV}
	client.KV = kv
	b := open(t, client)
	_, err = b.Acquire(t.Context(), request("k", time.Minute, 24*time.Hour))
	want(t, "Acquire", err, core.ErrUnavailable)
	ok(t, "Close", b.Close()) // waits for clean-ups
	if n := kv.changes.Load(); n > 2 {
		t.Errorf("%d changes, want the attempt's and one clean-up", n)
	}
}

// The reply of an Unseal is lost. Before it is repeated, another caller runs and seals the key.
func TestLostReply_UnsealLeavesALaterSeal(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	other := open(t, etcd.Client())
	seal := func(value string) {
		g := acquire(t, other, request("k", time.Minute, 0))
		ok(t, "Seal", other.Seal(t.Context(), g, []byte(value), time.Hour))
	}
	seal("first")
	client, k := lossy(etcd.Client(), 0)
	changes := 0
	k.lose = func() (bool, <-chan struct{}) {
		if changes++; changes == 2 { // the first one had its effect
			seal("second")
		}
		return changes == 1, nil
	}
	ok(t, "Unseal", open(t, client).Unseal(t.Context(), "k"))
	st, err := other.Inspect(t.Context(), "k")
	ok(t, "Inspect", err)
	if st.Status != core.Sealed || string(st.Value) != "second" {
		t.Errorf("one Unseal freed two seals: the key is %v with %q", st.Status, st.Value)
	}
}
