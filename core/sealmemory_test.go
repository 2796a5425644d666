package core_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

func TestSealMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l, other := locker(t, s, core.WithSealMemory(time.Second)), locker(t, s.Backend)
		seal := func(retention time.Duration) {
			t.Helper()
			ok(t, "Seal", acquire(t, other, "k").Seal(t.Context(), []byte("out"), retention))
		}
		asks := func(what string, times int, opts ...core.AcquireOption) {
			t.Helper()
			before := s.count("acquire")
			for i := range 3 {
				remembered := l.Remembered(t.Context(), "k", opts...)
				_, err := l.TryAcquire(t.Context(), "k", opts...)
				if remembers := times == 0 || times == 1 && i > 0; (remembered != nil) != remembers {
					t.Errorf("%s: before call %d it remembered %v", what, i, remembered)
				} else if remembers && !reflect.DeepEqual(error(remembered), err) {
					t.Errorf("%s: remembered is %v, and Acquire said %v", what, remembered, err)
				}
				want(t, what, err, core.ErrSealed)
				var e *core.SealedError
				if !errors.As(err, &e) || string(e.Value) != "out" || e.Key != "k" || e.ExpiresIn <= 0 || e.ExpiresIn > time.Minute {
					t.Errorf("%s: %#v", what, e)
				}
			}
			if n := s.count("acquire") - before; n != times {
				t.Errorf("%s: the backend was asked %d times, want %d", what, n, times)
			}
		}
		seal(time.Minute)
		asks("the first asks", 1)
		asks("then nobody", 0)
		asks("a call without memory", 3, core.WithSealMemory(0))
		time.Sleep(time.Second)
		asks("after its time", 1)

		done, cancel := context.WithCancel(t.Context())
		cancel()
		k := acquire(t, other, "another")
		for what, e := range map[string]*core.SealedError{
			"a done context":      l.Remembered(done, "k"),
			"a key that is none":  l.Remembered(t.Context(), ""),
			"a bad option":        l.Remembered(t.Context(), "k", core.WithTTL(-1)),
			"a key that is held":  l.Remembered(t.Context(), "another"),
			"a Locker without it": other.Remembered(t.Context(), "k"),
		} {
			if e != nil {
				t.Errorf("%s: remembered %v", what, e)
			}
		}
		ok(t, "Release", k.Release(t.Context()))

		ok(t, "Unseal", l.Unseal(t.Context(), "k"))
		ok(t, "Release", acquire(t, l, "k").Release(t.Context())) // at once in this process

		seal(500 * time.Millisecond)
		asks("a short seal", 1)
		time.Sleep(500 * time.Millisecond)
		ok(t, "Release", acquire(t, l, "k").Release(t.Context())) // a seal that has ended is not remembered

		seal(time.Minute)
		asks("sealed again", 1)
		ok(t, "Unseal", other.Unseal(t.Context(), "k"))
		asks("unsealed elsewhere", 0)
		time.Sleep(time.Second)
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))

		for i := range 3000 { // it does not grow for ever
			key := fmt.Sprint(i)
			ok(t, "Seal", acquire(t, other, key).Seal(t.Context(), nil, time.Hour))
			_, err := l.TryAcquire(t.Context(), key)
			want(t, "TryAcquire", err, core.ErrSealed)
		}
	})
	if _, err := core.New(testutil.Memory(), core.WithSealMemory(-1)); err == nil {
		t.Error("a negative memory was taken")
	}
}

// TestSealed_AnswerIsNotOlderThanTheQuestion: who asks after Unseal does not get the answer to a question of before.
func TestSealed_AnswerIsNotOlderThanTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &lateAnswer{Backend: testutil.Memory(), late: make(chan struct{}), let: make(chan struct{})}
		l := locker(t, b, core.WithSealMemory(time.Minute))
		ok(t, "Seal", acquire(t, l, "k").Seal(t.Context(), nil, time.Hour))
		b.hold = true
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := l.Acquire(t.Context(), "k"); first <- err }()
		<-b.late // the backend has said that it is sealed
		ok(t, "Unseal", l.Unseal(t.Context(), "k"))
		go func() {
			k, err := l.Acquire(t.Context(), "k")
			if err == nil {
				err = k.Release(t.Context())
			}
			second <- err
		}()
		synctest.Wait() // it stands in line
		close(b.let)
		want(t, "asked before", <-first, core.ErrSealed)
		ok(t, "asked after", <-second)
		ok(t, "Release", acquire(t, l, "k").Release(t.Context())) // and nothing was remembered
	})
}

// lateAnswer keeps its first answer, once hold is set, until let is closed.
type lateAnswer struct {
	core.Backend
	hold      bool
	late, let chan struct{}
}

func (b *lateAnswer) Acquire(ctx context.Context, key, owner string, ttl time.Duration) (core.Grant, error) {
	g, err := b.Backend.Acquire(ctx, key, owner, ttl)
	if b.hold {
		b.hold = false
		close(b.late)
		<-b.let
	}
	return g, err
}

// Values of some size are not piled up: 1,024 of 16 MiB would be 16 GiB.
func TestSealMemory_IsBoundedInBytes(t *testing.T) {
	t.Parallel()
	s := memorySpy()
	l := locker(t, s, core.WithSealMemory(time.Minute))
	const keys = 40
	ask := func() (asked int) {
		before := s.count("acquire")
		for i := range keys {
			_, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i))
			want(t, "TryAcquire", err, core.ErrSealed)
		}
		return s.count("acquire") - before
	}
	for i := range keys {
		ok(t, "Seal", acquire(t, l, fmt.Sprint("k", i)).Seal(t.Context(), make([]byte, 1<<20), time.Hour))
	}
	ask()
	if n := ask(); n < keys-16 {
		t.Errorf("%d of %d MiB are remembered", keys-n, keys)
	}
	if n := s.count("acquire"); func() int { _, _ = l.TryAcquire(t.Context(), fmt.Sprint("k", keys-1)); return s.count("acquire") }() != n {
		t.Error("the last answer is not remembered")
	}
}

// slowUnseal is a Backend that takes its time before it unseals.
type slowUnseal struct{ core.Backend }

func (b slowUnseal) Unseal(ctx context.Context, key string) error {
	time.Sleep(time.Second)
	return b.Backend.Unseal(ctx, key)
}

func TestSealMemory_ForgetsWhatWasAskedWhileItWasUnsealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, slowUnseal{testutil.Memory()}, core.WithSealMemory(time.Minute))
		ok(t, "Seal", acquire(t, l, "k").Seal(t.Context(), []byte("v"), time.Hour))
		start, unsealed := time.Now(), make(chan error, 1)
		go func() { unsealed <- l.Unseal(context.Background(), "k") }()
		time.Sleep(time.Second / 2)
		var sealed *core.SealedError
		for range 2 { // the second is from memory
			_, err := l.TryAcquire(t.Context(), "k")
			if !errors.As(err, &sealed) {
				t.Fatalf("TryAcquire while it is unsealed: %v", err)
			}
			if left := time.Hour - time.Since(start); sealed.ExpiresIn > left {
				t.Errorf("the answer says that the seal stays for %v, and it is %v", sealed.ExpiresIn, left)
			}
			time.Sleep(time.Second / 10)
		}
		ok(t, "Unseal", <-unsealed)
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	})
}
