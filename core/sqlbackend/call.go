package sqlbackend

import (
	"context"
	"fmt"

	"github.com/onelane/onelane/core"
)

// call runs fn with its own context and returns when ctx ends. A statement that is canceled in the
// middle costs its connection and may still have its effect at any time. If fn succeeds after that,
// late is called. Close waits for that.
func call[T any](ctx context.Context, b *backend, key string, fn func(context.Context) (T, error), late func()) (T, error) {
	type answer struct {
		value T
		err   error
	}
	if ctx.Err() != nil {
		return answer{}.value, unavailable(key, ctx.Err())
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
	answers, left := make(chan answer), make(chan struct{})
	done := func() {}
	if late != nil {
		done = b.cleaning.Expect()
	}
	go func() {
		defer cancel()
		defer done()
		var a answer
		a.value, a.err = fn(own)
		select {
		case answers <- a:
		case <-left:
			if a.err == nil && late != nil {
				late()
			}
		}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		close(left)
		return answer{}.value, unavailable(key, ctx.Err())
	case <-own.Done(): // and the driver did not notice
		close(left)
		return answer{}.value, unavailable(key, fmt.Errorf("the database did not answer within %v: %w", b.timeout, own.Err()))
	}
}

// cleanUp frees, in the background, what an attempt may hold that failed. An adopted key stays, as
// it is an orphan again when the lease ends: to free it would forget the orphan.
func (b *backend) cleanUp(q core.Request) {
	if q.Adopt != "" && q.Orphan > 0 {
		return
	}
	b.cleaning.Add(q.Key, q.TTL+q.Orphan, func(ctx context.Context) error {
		_, err := call(ctx, b, q.Key, func(ctx context.Context) (int64, error) {
			return b.exec(ctx, q.Key, releaseRow, []byte(q.Key), []byte(q.Owner))
		}, nil)
		return err
	})
}
