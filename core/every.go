package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

const (
	shortestInterval = 100 * time.Millisecond
	longestInterval  = 366 * 24 * time.Hour

	// longestSleep is how long an instance sleeps before it looks at the record again. An operator may
	// have unsealed it, and the backend's clock may have been set.
	longestSleep = time.Minute
)

// EveryOption configures one call of [Every]. A nil option is ignored; the later of two wins.
// [WithTTL], [WithMaxHold], [WithOutageWait], [WithTag] and [WithToken] are EveryOptions, too.
type EveryOption interface{ applyEvery(*everySettings) }

type everySettings struct {
	settings
	grace      time.Duration // 0: none
	atMostOnce bool
}

type everyOption func(*everySettings)

func (o everyOption) applyEvery(s *everySettings) { o(s) }

func (o acquireOption) applyEvery(s *everySettings) { o(&s.settings) }

// WithMisfireGrace sets how late a slot may begin. A slot that could not begin within d is skipped
// and counted. By default there is no limit: a late slot runs as soon as it can. The minimum is
// 10 ms. A slot whose runner died begins late, too, by up to the TTL.
func WithMisfireGrace(d time.Duration) EveryOption {
	return everyOption(func(s *everySettings) {
		if s.grace = d; d < minTTL || d > maxDuration {
			s.grace = -1 // refused, even if it is 0
		}
	})
}

// WithAtMostOnce records a slot before it runs and not after it. If the runner dies, or loses the
// lock, its slot does not run again.
func WithAtMostOnce() EveryOption {
	return everyOption(func(s *everySettings) { s.atMostOnce = true })
}

// Every runs fn once per interval over all instances that call it with the same name, until ctx
// ends. It waits for fn, and returns ctx's error. The first slot begins with the first call ever;
// each further one begins an interval later. No clock of an instance counts: the last slot is a
// record in the backend, which says how old it is.
//
//   - One instance runs a slot, under the lock of the job: slots do not overlap. If fn takes longer
//     than the interval, the next slot begins when fn returns.
//   - If the runner dies before fn returns, or loses the lock, another instance runs the slot
//     again, within the TTL. So does another instance if ctx ends and fn returns an error. With
//     [WithAtMostOnce] nobody does.
//   - Slots that nobody began in time, because the backend or all instances were away or fn took
//     long, run as one, as soon as possible. [WithMisfireGrace] skips them instead. The slots after
//     them keep their times. The metric onelane.every.skipped counts slots that did not get their
//     own run.
//   - If fn returns an error or panics, that is logged and counted, and the next slot runs in its
//     time. The metric onelane.every.duration counts runs by their outcome.
//   - While the backend is unavailable, Every logs that and tries again.
//   - The context of fn carries the lock (see [WithLock]), and is canceled with cause [ErrLost] if
//     the lock is lost. Without [WithMaxHold], it is lost after 15 minutes.
//   - When the process stops, end ctx and wait for Every before [Locker.Close].
//   - The interval is 100 ms to 366 days. A new interval counts from the last slot.
//
// Every returns another error than ctx's only if it cannot work: for a bad name, interval or
// option, after [Locker.Close], and on a backend without seals.
//
// The key of the lock is Join("every", name). The records of the last two slots are under
// Join("every", name, "last") and Join("every", name, "last2"). [Locker.Unseal] of both makes the
// job begin anew, with a slot that begins within a minute.
func Every(ctx context.Context, l *Locker, name string, interval time.Duration, fn func(context.Context) error, opts ...EveryOption) error {
	j, err := newJob(ctx, l, name, interval, fn, opts)
	if err != nil {
		return err
	}
	pauses := backoff{jitter: l.chance.jitter}
	for {
		wait, err := j.turn(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case l.isClosed():
			if err == nil || errors.Is(err, ErrClosed) {
				return fmt.Errorf("core: every %q: %w", name, cmp.Or(err, ErrClosed))
			}
			return fmt.Errorf("core: every %q: %w: %w", name, ErrClosed, err) // a call was under way
		case err == nil:
			pauses.outage = 0
		case errors.Is(err, ErrInvalidKey):
			return fmt.Errorf("core: every %q: %w", name, err)
		default:
			l.logger.Warn("core: a job cannot run or record its slot, and tries again; look at the error",
				"job", name, "error", err)
			wait = pauses.unavailable()
		}
		select {
		case <-time.After(min(wait, longestSleep)):
		case <-ctx.Done():
		case <-l.done:
		}
	}
}

// job is one call of Every.
type job struct {
	everySettings
	locker   *Locker
	name     string
	interval time.Duration
	fn       func(context.Context) error
	metrics  jobMetrics
	lock     string // the key
	record   record
}

func newJob(ctx context.Context, l *Locker, name string, interval time.Duration, fn func(context.Context) error, opts []EveryOption) (*job, error) {
	switch {
	case l == nil || fn == nil:
		return nil, fmt.Errorf("core: every %q: pass a Locker and a function", name)
	case interval < shortestInterval || interval > longestInterval:
		return nil, fmt.Errorf("core: every %q: the interval %v must be between %v and %v", name, interval, shortestInterval, longestInterval)
	}
	if !l.Seals() {
		return nil, fmt.Errorf("core: every %q: %w", name, ErrNoSeals)
	}
	j := &job{locker: l, name: name, interval: interval, fn: fn, lock: Join("every", name)}
	j.settings = l.settings
	j.wait, j.orphan = forever, 0
	for _, o := range opts {
		if o != nil {
			o.applyEvery(&j.everySettings)
		}
	}
	switch {
	case j.orphan != 0 || j.wait != forever:
		return nil, fmt.Errorf("core: every %q: WithOrphan and WithWait have no meaning here; see WithAtMostOnce and WithMisfireGrace", name)
	case j.grace < 0:
		return nil, fmt.Errorf("core: every %q: WithMisfireGrace must be between %v and %v", name, minTTL, maxDuration)
	}
	j.record = record{locker: l, keys: [2]string{Join("every", name, "last"), Join("every", name, "last2")}, newest: 1}
	for _, key := range []string{name, j.lock, j.record.keys[0], j.record.keys[1]} {
		if _, err := backendKey(l.prefix, key); err != nil {
			return nil, fmt.Errorf("core: every %q: %w", name, err)
		}
	}
	if l.Carries(ctx, j.lock) {
		return nil, fmt.Errorf("core: every %q: the context carries the lock of this job, and slots do not overlap; call Every outside of its function", name)
	}
	if err := j.valid(); err != nil {
		return nil, err
	}
	var err error
	j.metrics, err = newJobMetrics(&l.config, name)
	return j, err
}

// as makes the acquisitions of a job: with the settings of the call, not with the Locker's.
func (j *job) as() AcquireOption { return acquireOption(func(s *settings) { *s = j.settings }) }

// turn runs the next slot if it is due, and returns for how long nothing is to do.
func (j *job) turn(ctx context.Context) (wait time.Duration, err error) {
	if due, err := j.due(ctx); err != nil || time.Now().Before(due) {
		return time.Until(due), err
	}
	k, err := j.locker.Acquire(ctx, j.lock, j.as())
	if err != nil {
		return 0, err
	}
	defer func() { err = j.locker.releaseAfter(ctx, k, false, err) }()
	// Another instance may have run the slot meanwhile.
	due, err := j.due(ctx)
	late := time.Since(due)
	if err != nil || late < 0 {
		return -late, err
	}
	skipped := late / j.interval
	due, late = due.Add(skipped*j.interval), late%j.interval
	runs := j.grace == 0 || late <= j.grace
	if !runs {
		skipped++
	}
	if j.atMostOnce || !runs {
		if err := j.done(ctx, k, due, int64(skipped)); err != nil {
			return 0, err
		}
	}
	if runs {
		finished, err := j.run(ctx, k)
		if err == nil && finished && !j.atMostOnce {
			err = j.done(ctx, k, due, int64(skipped))
		}
		if err != nil || !finished {
			return 0, err
		}
	}
	return time.Until(due.Add(j.interval)), nil
}

// due returns when the next slot begins, by this process's monotonic clock. The first one begins at
// once.
func (j *job) due(ctx context.Context) (time.Time, error) {
	last, found, err := j.record.read(ctx)
	if err != nil || !found {
		return time.Now(), err
	}
	return last.Add(j.interval), nil
}

// done records the slot that was due then.
func (j *job) done(ctx context.Context, k *Lock, due time.Time, skipped int64) error {
	if err := j.record.write(ctx, k, due, j.as()); err != nil {
		return err
	}
	if skipped > 0 {
		j.metrics.skipped.Add(context.Background(), skipped, j.metrics.job)
		j.locker.logger.Warn("core: slots of a job had no run of their own: nobody could begin them in time, or the run before them took longer than the interval",
			"job", j.name, "skipped", skipped)
	}
	return nil
}

// run runs fn under the lock k. finished reports that the slot is over. It is not if the lock was
// lost, which is the error, or if the end of ctx stopped fn. If the lock was lost before, fn does not
// begin: another instance may run the slot.
func (j *job) run(ctx context.Context, k *Lock) (finished bool, err error) {
	if err := k.Err(); err != nil {
		return false, err
	}
	began, outcome := time.Now(), outcomeSucceeded
	err = j.call(WithLock(k.Context(), k))
	over := k.Err()
	switch {
	case over != nil:
		outcome = outcomeLost
	case err != nil && ctx.Err() != nil:
		outcome = outcomeCancelled
	case err != nil:
		outcome = outcomeFailed
	}
	// An error after the end of ctx is no failure, but a panic always is.
	if _, panicked := errors.AsType[*jobPanic](err); panicked || outcome == outcomeFailed {
		j.failed(err)
	}
	j.metrics.ran(outcome, time.Since(began))
	return outcome == outcomeSucceeded || outcome == outcomeFailed, over
}

func (j *job) failed(err error) {
	args := []any{"job", j.name, "error", err}
	if p, ok := errors.AsType[*jobPanic](err); ok {
		args = append(args, "stack", p.stack)
	}
	j.locker.logger.Log(context.Background(), slog.LevelError, "core: the function of a job failed; the next slot runs in its time", args...)
}

// call calls fn and turns a panic into an error.
func (j *job) call(ctx context.Context) (err error) {
	defer func() {
		if what := recover(); what != nil {
			err = &jobPanic{what, string(debug.Stack())}
		}
	}()
	return j.fn(ctx)
}

// jobPanic is a panic of fn.
type jobPanic struct {
	what  any
	stack string
}

func (p *jobPanic) Error() string { return fmt.Sprintf("panic: %v", p.what) }
