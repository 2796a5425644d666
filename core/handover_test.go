package core_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A holder that extended its lease to an hour does not leave the hour to the next one, who chose a
// second.
func TestHandOver_IsNotOfALeaseLongerThanItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		opts := []core.AcquireOption{core.WithTTL(time.Second)}
		k := acquire(t, l, "k", opts...)
		ok(t, "Extend", k.Extend(t.Context(), time.Hour))
		got := make(chan *core.Lock, 1)
		go func() {
			k, err := l.Acquire(context.Background(), "k", opts...)
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		synctest.Wait()
		ok(t, "Release", k.Release(t.Context()))
		next := <-got
		if left := time.Until(next.Deadline()); left > time.Second {
			t.Errorf("a lease of %v with a TTL of 1 s", left)
		}
		ok(t, "Release", next.Release(t.Context()))
	})
}

// entering does something when its Done channel is first asked for: when its waiter is about to
// wait in line.
type entering struct {
	context.Context
	once *sync.Once
	do   func()
}

func (c entering) Done() <-chan struct{} {
	c.once.Do(c.do)
	return c.Context.Done()
}

func TestHandOver_ADoneContextNeverGetsALock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that the 100 ms of a release are not over on a busy machine
		l := locker(t, backendtest.Memory())
		for range 50 { // the lock and the end of the context are there at once: either may be seen first
			k := acquire(t, l, "k")
			ctx, cancel := context.WithCancel(t.Context())
			next, err := l.Acquire(entering{ctx, new(sync.Once), func() {
				ok(t, "Release", k.Release(context.Background()))
				cancel()
			}}, "k")
			if next != nil {
				t.Fatal("got a lock with a context that is done")
			}
			want(t, "Acquire", err, context.Canceled)
		}
		if got := status(t, l, "k"); got != core.Free {
			t.Errorf("key is %v", got)
		}
	})
}

// overdue is a context at its deadline whose timer has not run yet: a connection may notice the
// deadline first.
type overdue struct {
	context.Context
	deadline time.Time
}

func (c overdue) Deadline() (time.Time, bool) { return c.deadline, true }

func TestWait_TheDeadlineOfTheFirstIsNotAnAnswerForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.on("acquire", func(ctx context.Context) error {
			s.on("acquire", nil)
			deadline, _ := ctx.Deadline()
			time.Sleep(time.Until(deadline))
			return unavailable("k")
		})
		first := make(chan error, 1)
		go func() {
			_, err := l.Acquire(overdue{context.Background(), time.Now().Add(time.Second)}, "k")
			first <- err
		}()
		synctest.Wait()
		k := acquire(t, l, "k") // stands behind it; the backend is well
		wantEnded(t, "the first", <-first, context.DeadlineExceeded)
		ok(t, "Release", k.Release(t.Context()))
	})
}

// A wait that ends in the middle of a try says nothing about the backend. Those behind it learn
// that the key is taken.
func TestWait_ATryCutShortIsNoOutageForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, locker(t, s.Sealer), "k", core.WithTTL(time.Minute))
		s.on("acquire", func(ctx context.Context) error { // each answer takes 20 ms
			select {
			case <-time.After(20 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return &core.UnavailableError{Key: "k", Nodes: []error{ctx.Err()}}
			}
		})
		waits := func(d time.Duration) <-chan error {
			answer := make(chan error, 1)
			go func() { _, err := l.Acquire(context.Background(), "k", core.WithWait(d)); answer <- err }()
			synctest.Wait()
			return answer
		}
		first := waits(30 * time.Millisecond) // asks from 0 to 20 ms, and from 20 ms until its wait is over
		second := waits(time.Second)          // asks from 30 to 50 ms
		third := waits(35 * time.Millisecond)
		want(t, "the first", <-first, core.ErrTaken)
		want(t, "the third", <-third, core.ErrTaken)
		want(t, "the second", <-second, core.ErrTaken)
		ok(t, "Release", k.Release(t.Context()))
	})
}

// Waits that are too short for an answer learn of an outage all the same.
func TestWait_ShortWaitsLearnOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, locker(t, s.Sealer), "k", core.WithTTL(time.Minute))
		var all sync.WaitGroup
		answers := make([]error, 50)
		for i := range answers {
			if i == 1 { // the first learned that the key is taken; then the backend hangs
				s.on("acquire", func(ctx context.Context) error {
					<-ctx.Done()
					return &core.UnavailableError{Key: "k", Nodes: []error{ctx.Err()}}
				})
			}
			all.Go(func() {
				_, answers[i] = l.Acquire(context.Background(), "k", core.WithWait(50*time.Millisecond))
			})
			synctest.Wait()
			time.Sleep(20 * time.Millisecond) // they overlap
		}
		all.Wait()
		want(t, "a second after the last answer", answers[len(answers)-1], core.ErrUnavailable)
		ok(t, "Release", k.Release(t.Context()))
	})
}
