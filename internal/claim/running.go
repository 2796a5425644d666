package claim

import (
	"context"
	"fmt"
	"sync"
)

// maxDetached is how many handlers of one process may run on after their clients hung up. The
// contexts of further handlers end with their clients.
const maxDetached = 1000

// registry knows the claims of this process.
type registry struct {
	mu       sync.Mutex
	claims   map[*Claim]bool // whether the handler goes on without its client
	detached int
	late     map[*context.CancelFunc]struct{} // what goes on in the background
	idle     chan struct{}                    // closed when nothing runs; nil if nobody waits
}

var running = &registry{
	claims: make(map[*Claim]bool),
	late:   make(map[*context.CancelFunc]struct{}),
}

func (r *registry) add(k *Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims[k] = false
}

func (r *registry) remove(k *Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claims[k] {
		r.detached--
	}
	delete(r.claims, k)
	r.wake()
}

// detach counts a handler that goes on without its client. It returns false if there are too many,
// or if the handler has returned.
func (r *registry) detach(k *Claim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, runs := r.claims[k]; !runs || r.detached >= maxDetached {
		return false
	}
	r.detached++
	r.claims[k] = true
	return true
}

// background runs fn in a goroutine that Shutdown waits for.
func (r *registry) background(fn func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late[&cancel] = struct{}{}
	go func() {
		defer func() {
			cancel()
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.late, &cancel)
			r.wake()
		}()
		fn(ctx)
	}()
}

// wake wakes the waiters if nothing runs any more. r.mu is held.
func (r *registry) wake() {
	if r.idle != nil && len(r.claims)+len(r.late) == 0 {
		close(r.idle)
		r.idle = nil
	}
}

// wait returns a channel that is closed when nothing runs.
func (r *registry) wait() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	idle := r.idle
	r.wake()
	return idle
}

// cancel ends the contexts of all handlers, and what goes on in the background.
func (r *registry) cancel(cause error) (handlers, answers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.claims {
		k.cancel(cause)
	}
	for stop := range r.late {
		(*stop)()
	}
	return len(r.claims), len(r.late)
}

// Shutdown waits until no handler runs under a claim and every answer is recorded. If ctx ends
// before that, it ends their contexts and returns an error that says how many there were.
func Shutdown(ctx context.Context) error {
	select {
	case <-running.wait():
		return nil
	case <-ctx.Done():
	}
	cause := fmt.Errorf("idempotency: shutdown: %w", context.Cause(ctx))
	handlers, answers := running.cancel(cause)
	if handlers+answers == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d handlers were still running and %d answers were not recorded; their outcomes are unknown to a retry", cause, handlers, answers)
}
