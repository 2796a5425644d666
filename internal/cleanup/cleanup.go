// Package cleanup frees, in the background, keys that failed attempts may hold. Every backend needs
// it: a request of unknown outcome may have had its effect, or have it later. Without a clean-up,
// its key stays held until the lease ends. If the request asked for an orphan, the key then stays
// orphaned until the retention ends.
//
//   - Four workers take the key that has waited longest. After a try that failed, the key waits
//     again and the worker pauses. Its pauses grow to about a second. So a long outage costs the
//     server about four tries a second.
//   - A key is tried for as long as the attempt may hold it, and for two minutes at least. The
//     reason is that a server that hung runs a request when it goes on. The queue logs a key that
//     it gives up.
//   - A request may be under way for longer than its caller waits, so that its clean-up overtakes
//     it. So a clean-up that succeeded is repeated, for the last time 12 s later. If the server
//     refuses requests that come so late, nothing is repeated. Repeating is safe because each
//     attempt has its own owner.
//   - At most 16,384 keys are kept. A further one takes the place of a repetition. If there is
//     none, it is dropped and logged.
//   - Close gives clean-ups the time that its caller says. It tries at once all keys that wait for
//     a try or for their repetition. After that time it drops the rest.
package cleanup

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/onelane/onelane/internal/loglimit"
	"github.com/onelane/onelane/internal/ownertext"
)

const (
	// Workers is how many clean-ups of a queue run at a time.
	Workers = 4
	// CloseGrace is how long a backend's Close waits for clean-ups.
	CloseGrace = time.Second

	maxKeys      = 1 << 14
	leastTime    = 2 * time.Minute
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// repetitions are the pauses after which a clean-up that succeeded is done again.
var repetitions = [...]time.Duration{20 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second, 10 * time.Second}

// Config has the choices of a backend for its queue.
type Config struct {
	// Logger returns the logger of failures. It is called for each line.
	Logger func() *slog.Logger
	// Once means that the server refuses a request that comes after its clean-up. The queue then
	// repeats no clean-up.
	Once bool
}

// Queue holds the keys to free. Its methods are safe for concurrent use. Add and Waiting do not
// block.
type Queue struct {
	config          Config
	tooMany, gaveUp string

	open context.Context // until the end of Close
	stop context.CancelFunc

	mu      sync.Mutex
	waiting []*entry               // for a worker
	later   map[*entry]*time.Timer // freed, and to be freed again
	entries int                    // waiting, later, and in the hands of workers
	calls   int                    // see Expect
	workers int
	working sync.WaitGroup
	closed  bool
	closing chan struct{} // closed by Close, to end the pauses
	empty   chan struct{} // closed when the queue is closed, and has no entries and no calls
}

type entry struct {
	key   string
	free  func(context.Context) error
	until time.Time
	freed int // how often
}

// NewQueue returns a queue. It logs tooMany for a key that is dropped because the queue is full,
// and gaveUp for one that could not be freed in time.
func NewQueue(c Config, tooMany, gaveUp string) *Queue {
	q := &Queue{config: c, tooMany: tooMany, gaveUp: gaveUp,
		later: make(map[*entry]*time.Timer), closing: make(chan struct{}), empty: make(chan struct{})}
	q.open, q.stop = context.WithCancel(context.Background())
	return q
}

// Add frees key in the background. The attempt may hold key for as long as lasts says. free makes
// one try and bounds its time itself. It returns nil if the attempt holds nothing any more.
// Otherwise the queue calls free again.
func (q *Queue) Add(key string, lasts time.Duration, free func(context.Context) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed && q.calls == 0 || q.open.Err() != nil {
		return
	}
	if q.entries == maxKeys {
		q.forgetRepetition()
	}
	if q.entries == maxKeys {
		q.warn(q.tooMany, "waiting", q.entries, "key", ownertext.Key(key))
		return
	}
	q.entries++
	q.push(&entry{key: key, free: free, until: time.Now().Add(max(lasts, leastTime))})
}

// Expect notes that a call is under way that may need a clean-up. Close waits for it, too, until
// done is called. When Close has begun, it waits for further calls only as long as others are under
// way: they may be parts of those.
func (q *Queue) Expect() (done func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed && q.calls == 0 || q.open.Err() != nil {
		return func() {}
	}
	q.calls++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.calls--
		q.checkEmpty()
	}
}

// AddAfter calls Add when late is closed. Until then the attempt is still under way.
func (q *Queue) AddAfter(late <-chan struct{}, key string, lasts time.Duration, free func(context.Context) error) {
	done := q.Expect()
	go func() {
		defer done()
		select {
		case <-late:
			q.Add(key, lasts, free)
		case <-q.open.Done():
		}
	}()
}

// checkEmpty tells Close when there is nothing left. The caller holds q.mu.
func (q *Queue) checkEmpty() {
	if q.closed && q.entries == 0 && q.calls == 0 {
		close(q.empty)
	}
}

// forgetRepetition makes room for a key that may be held. The caller holds q.mu.
func (q *Queue) forgetRepetition() {
	for e, timer := range q.later {
		timer.Stop()
		delete(q.later, e)
		q.entries--
		return
	}
}

// Waiting returns how many keys have not been freed yet.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.entries - len(q.later)
}

// Close ends the queue. From then on, Add takes only keys of calls that Close waits for. Close
// returns when all keys are free, or when grace has passed and the tries under way have ended.
func (q *Queue) Close(grace time.Duration) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return
	}
	q.closed = true
	close(q.closing)
	for e, timer := range q.later {
		timer.Stop()
		q.push(e)
	}
	q.checkEmpty()
	q.mu.Unlock()
	select {
	case <-q.empty:
	case <-time.After(grace):
	}
	q.mu.Lock()
	q.stop() // no worker begins after this
	q.mu.Unlock()
	q.working.Wait()
}

// push gives e to a worker. The caller holds q.mu.
func (q *Queue) push(e *entry) {
	delete(q.later, e)
	q.waiting = append(q.waiting, e)
	if q.workers < Workers && q.open.Err() == nil {
		q.workers++
		q.working.Go(q.work)
	}
}

// next takes the oldest key, or ends a worker.
func (q *Queue) next() *entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 || q.open.Err() != nil {
		q.workers--
		q.waiting = nil // no room is kept for them
		return nil
	}
	e := q.waiting[0]
	q.waiting = q.waiting[1:]
	return e
}

// work frees keys until there are none.
func (q *Queue) work() {
	pause, closing := firstPause, q.closing
	for e := q.next(); e != nil; e = q.next() {
		err := e.free(q.open)
		q.tried(e, err)
		if err == nil {
			pause = firstPause
			continue
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)): // not when all other processes try
		case <-closing: // once: the next tries have pauses again
			pause, closing = firstPause, nil
		case <-q.open.Done():
		}
		pause = min(2*pause, longestPause)
	}
}

// tried decides what becomes of a key after a try.
func (q *Queue) tried(e *entry, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	over := q.config.Once || e.freed == len(repetitions) || q.closed && e.freed > 0
	switch {
	case err == nil && !over:
		q.later[e] = time.AfterFunc(repetitions[e.freed], func() { q.repeat(e) })
		e.freed++
		return
	case err != nil && q.open.Err() != nil:
		return // Close does not wait for it
	case err != nil && time.Now().Before(e.until):
		q.waiting = append(q.waiting, e) // for this worker or another, after a pause
		return
	case err != nil:
		q.warn(q.gaveUp, "waiting", q.entries, "key", ownertext.Key(e.key), "error", err)
	}
	q.entries--
	q.checkEmpty()
}

func (q *Queue) repeat(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.later[e] != nil {
		q.push(e)
	}
}

// warn logs without waiting for the log.
func (q *Queue) warn(message string, args ...any) {
	loglimit.Later(q.config.Logger(), slog.LevelWarn, message, args...)
}
