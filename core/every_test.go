package core_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// place is Memory as one instance sees it.
type place struct {
	*backendtest.MemoryBackend
	away    atomic.Bool   // no call is answered
	younger time.Duration // by how much all seals seem to be younger than they are
	lasts   int           // changes of the record until it dies, or 0
}

// changes is gone for a call that changes a key.
func (p *place) changes(key string) error {
	if p.lasts > 0 && isRecord(key) {
		if p.lasts--; p.lasts == 0 {
			p.away.Store(true)
		}
	}
	return p.gone(key)
}

func isRecord(key string) bool {
	return strings.HasSuffix(key, ":last}") || strings.HasSuffix(key, ":last2}")
}

func (p *place) gone(key string) error {
	if p.away.Load() {
		return unavailable(key)
	}
	return nil
}

func (p *place) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if err := p.changes(r.Key); err != nil {
		return core.Grant{}, err
	}
	return p.MemoryBackend.Acquire(ctx, r)
}

func (p *place) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	if err := p.gone(g.Key); err != nil {
		return g, err
	}
	return p.MemoryBackend.Extend(ctx, g, ttl)
}

func (p *place) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	if err := p.gone(g.Key); err != nil {
		return core.Waiters{}, err
	}
	return p.MemoryBackend.Release(ctx, g)
}

func (p *place) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	if err := p.changes(g.Key); err != nil {
		return err
	}
	return p.MemoryBackend.Seal(ctx, g, value, retention)
}

func (p *place) Unseal(ctx context.Context, key string) error {
	if err := p.changes(key); err != nil {
		return err
	}
	return p.MemoryBackend.Unseal(ctx, key)
}

func (p *place) Inspect(ctx context.Context, key string) (core.State, error) {
	if err := p.gone(key); err != nil {
		return core.State{}, err
	}
	st, err := p.MemoryBackend.Inspect(ctx, key)
	if st.Status == core.Sealed {
		st.ExpiresIn += p.younger
	}
	return st, err
}

// job counts the runs of a job and when they began.
type job struct {
	mu    sync.Mutex
	runs  []time.Duration // since start
	start time.Time
	at    int // runs now
}

func newJob() *job { return &job{start: time.Now()} }

func (j *job) note() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.runs = append(j.runs, time.Since(j.start))
}

func (j *job) seen() []time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.runs)
}

// run is a function for Every that takes a while.
func (j *job) run(t testing.TB, takes time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		j.note()
		j.mu.Lock()
		if j.at++; j.at > 1 {
			t.Error("two runs at a time")
		}
		j.mu.Unlock()
		defer func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.at--
		}()
		select {
		case <-time.After(takes):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// began checks when the runs began, to the tenth of a second.
func (j *job) began(t testing.TB, want ...time.Duration) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	same := len(want) == len(j.runs)
	for i := 0; same && i < len(want); i++ {
		same = (j.runs[i] - want[i]).Abs() < 100*time.Millisecond
	}
	if !same {
		t.Errorf("the runs began at %v, want %v", j.runs, want)
	}
}

const minute = time.Minute

// starts Every in the background, and returns a function that stops it and returns its error.
func every(l *core.Locker, fn func(context.Context) error, opts ...core.EveryOption) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- core.Every(ctx, l, "report", minute, fn, opts...) }()
	return func() error {
		cancel()
		return <-done
	}
}

// stopped stops Every and checks its error.
func stopped(t testing.TB, stop func() error) {
	t.Helper()
	want(t, "Every", stop(), context.Canceled)
}

// One instance of three runs each slot, even if their views of the record's age differ by hours.
func TestEvery_OneRunPerSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, j := backendtest.Memory(), newJob()
		var stops []func() error
		for _, younger := range []time.Duration{time.Hour, 24 * time.Hour, 20 * time.Second} {
			l := locker(t, &place{MemoryBackend: b, younger: younger})
			stops = append(stops, every(l, j.run(t, 5*time.Second)))
		}
		time.Sleep(10*minute - time.Second)
		for _, stop := range stops {
			stopped(t, stop)
		}
		j.began(t, 0, minute, 2*minute, 3*minute, 4*minute, 5*minute, 6*minute, 7*minute, 8*minute, 9*minute)
	})
}

// If a runner dies, another one follows within the TTL, and the slot runs again unless it may run at
// most once. The slots after it keep their times.
func TestEvery_RunnerDies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []core.EveryOption
		want []time.Duration
	}{
		"again":        {nil, []time.Duration{0, minute, minute + 12*time.Second, 2 * minute}},
		"at most once": {[]core.EveryOption{core.WithAtMostOnce()}, []time.Duration{0, minute, 2 * minute}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, j := backendtest.Memory(), newJob()
				dying := &place{MemoryBackend: b}
				stopDead := every(locker(t, dying), func(ctx context.Context) error {
					if j.note(); len(j.seen()) == 2 {
						time.Sleep(2 * time.Second)
						dying.away.Store(true)
						<-ctx.Done()
					}
					return nil
				}, c.opts...)
				time.Sleep(minute + time.Second)
				stop := every(locker(t, b), j.run(t, time.Second), c.opts...)
				time.Sleep(minute + 30*time.Second)
				stopped(t, stopDead)
				stopped(t, stop)
				if name == "again" && len(j.runs) > 2 { // the lease ends 10 s after its last renewal
					if took := j.runs[2] - minute; took > 12*time.Second {
						t.Errorf("another instance took over after %v", took)
					}
					j.runs[2] = minute + 12*time.Second
				}
				j.began(t, c.want...)
			})
		})
	}
}

// Two runners die, one after the other, each at some step of recording a slot. The slots keep their
// times.
func TestEvery_DiesWhileItRecords(t *testing.T) {
	t.Parallel()
	const steps = 5 // a record is four changes
	for n := range steps * steps {
		synctest.Test(t, func(t *testing.T) {
			b, j := backendtest.Memory(), newJob()
			var stops []func() error
			start := func(lasts int) {
				stops = append(stops, every(locker(t, &place{MemoryBackend: b, lasts: lasts}), j.run(t, time.Second)))
			}
			start(0)
			time.Sleep(30 * time.Second)
			stopped(t, stops[0])
			stops = nil
			start(1 + n/steps)
			time.Sleep(32 * time.Second)
			start(1 + n%steps)
			time.Sleep(88 * time.Second)
			start(0)
			time.Sleep(6 * minute)
			for _, stop := range stops {
				stopped(t, stop)
			}
			// From here on an instance that does not die is there. A slot whose runner dies runs again.
			for due := 3 * minute; due <= 8*minute; due += minute {
				inTime := func(run time.Duration) bool { return (run - due).Abs() <= 100*time.Millisecond }
				if !slices.ContainsFunc(j.runs, inTime) {
					t.Errorf("deaths at steps %d and %d: no run at %v, but at %v", n/steps, n%steps, due, j.runs)
				}
			}
		})
	}
}

// Slots that an outage kept from running are run as one or skipped, and are counted. It makes no
// difference whether the backend is away or all instances are.
func TestEvery_Outage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts    []core.EveryOption
		restart bool
		want    []time.Duration
		skipped int64
	}{
		"backend, run":    {nil, false, []time.Duration{0, 210 * time.Second, 4 * minute}, 2},
		"instances, run":  {nil, true, []time.Duration{0, 210 * time.Second, 4 * minute}, 2},
		"backend, skip":   {[]core.EveryOption{core.WithMisfireGrace(20 * time.Second)}, false, []time.Duration{0, 4 * minute}, 3},
		"instances, skip": {[]core.EveryOption{core.WithMisfireGrace(20 * time.Second)}, true, []time.Duration{0, 4 * minute}, 3},
		"in time":         {[]core.EveryOption{core.WithMisfireGrace(40 * time.Second)}, true, []time.Duration{0, 210 * time.Second, 4 * minute}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, j := newMeters(), newJob()
				p := &place{MemoryBackend: backendtest.Memory()}
				l := locker(t, p, core.WithTelemetry(m, nil))
				stop := every(l, j.run(t, time.Second), c.opts...)
				time.Sleep(30 * time.Second)
				if c.restart {
					stopped(t, stop)
				}
				p.away.Store(true)
				time.Sleep(3 * minute)
				p.away.Store(false)
				if c.restart {
					stop = every(locker(t, p, core.WithTelemetry(m, nil)), j.run(t, time.Second), c.opts...)
				}
				time.Sleep(minute)
				stopped(t, stop)
				for i, at := range j.runs { // a backend that is back is noticed within a pause
					if late := at - 210*time.Second; late > 0 && late < 3*time.Second {
						j.runs[i] = 210 * time.Second
					}
				}
				j.began(t, c.want...)
				read := m.read(t)
				if got := read["onelane.every.skipped{onelane.job=report}"]; got != c.skipped {
					t.Errorf("%d slots are counted as skipped, want %d", got, c.skipped)
				}
				if got := read["onelane.every.duration{onelane.job=report,onelane.outcome=succeeded}"]; got != int64(len(c.want)) {
					t.Errorf("%d runs are counted, want %d", got, len(c.want))
				}
			})
		})
	}
}

// Every waits for the function when its context ends. Another instance makes up for a run that its
// end stopped, but not for a run that succeeded.
func TestEvery_ContextEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		result error
		want   []time.Duration
	}{
		"succeeds": {nil, []time.Duration{0, minute, 2 * minute}},
		"stopped":  {errJob, []time.Duration{0, minute, 73 * time.Second, 2 * minute}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, j := backendtest.Memory(), newJob()
				returned := false
				stop := every(locker(t, b), func(ctx context.Context) error {
					if j.note(); len(j.seen()) == 1 {
						return nil
					}
					<-ctx.Done()
					time.Sleep(3 * time.Second)
					returned = true
					return c.result
				})
				time.Sleep(minute + time.Second)
				next := every(locker(t, b), j.run(t, time.Second))
				time.Sleep(9 * time.Second)
				stopped(t, stop)
				if !returned {
					t.Error("Every returned before the function")
				}
				time.Sleep(minute)
				stopped(t, next)
				j.began(t, c.want...)
			})
		})
	}
}

// A function that fails or panics is logged and counted, and the next slot runs in its time.
func TestEvery_FunctionFails(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func() error{
		"error": func() error { return errJob },
		"panic": func() error { panic(errJob) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, j := newMeters(), newJob()
				var log bytes.Buffer
				l := locker(t, backendtest.Memory(), core.WithTelemetry(m, nil), core.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				stop := every(l, func(ctx context.Context) error {
					_ = j.run(t, time.Second)(ctx)
					return fails()
				})
				time.Sleep(2*minute + 30*time.Second)
				stopped(t, stop)
				synctest.Wait()
				j.began(t, 0, minute, 2*minute)
				if got := m.read(t)["onelane.every.duration{onelane.job=report,onelane.outcome=failed}"]; got != 3 {
					t.Errorf("%d failures are counted, want 3", got)
				}
				if n := strings.Count(log.String(), errJob.Error()); n < 3 || !strings.Contains(log.String(), "job=report") {
					t.Errorf("%d failures are logged:\n%s", n, &log)
				}
				if name == "panic" && !strings.Contains(log.String(), "every_test.go") {
					t.Errorf("the log does not show where it panicked:\n%s", &log)
				}
			})
		})
	}
}

// A slot is recorded over an outage that is shorter than the lease: it does not run again.
func TestEvery_RecordOverOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, j := &place{MemoryBackend: backendtest.Memory()}, newJob()
		fn := func(ctx context.Context) error {
			time.AfterFunc(5*time.Second, func() { p.away.Store(false) })
			p.away.Store(true)
			return j.run(t, time.Second)(ctx)
		}
		stop, other := every(locker(t, p), fn), every(locker(t, p.MemoryBackend), fn)
		time.Sleep(2*minute + 30*time.Second)
		stopped(t, stop)
		stopped(t, other)
		j.began(t, 0, minute, 2*minute)
	})
}

// A function that takes longer than the interval runs again when it is over. Slots do not overlap.
func TestEvery_LongFunction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, j, m := backendtest.Memory(), newJob(), newMeters()
		var stops []func() error
		for range 2 {
			stops = append(stops, every(locker(t, b, core.WithTelemetry(m, nil)), j.run(t, 150*time.Second)))
		}
		time.Sleep(250 * time.Second) // a third one comes in the middle of a run
		stops = append(stops, every(locker(t, b, core.WithTelemetry(m, nil)), j.run(t, 150*time.Second)))
		time.Sleep(205 * time.Second)
		j.began(t, 0, 150*time.Second, 300*time.Second, 450*time.Second)
		for _, stop := range stops { // meanwhile another one may begin
			stopped(t, stop)
		}
		if got := m.read(t)["onelane.every.skipped{onelane.job=report}"]; got != 3 {
			t.Errorf("%d slots are counted as skipped, want 3: those at 1, 3 and 4 min", got)
		}
	})
}

// The lock is lost when WithMaxHold ends, and another instance runs the slot again.
func TestEvery_LockLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, j, m := backendtest.Memory(), newJob(), newMeters()
		stop := every(locker(t, b, core.WithTelemetry(m, nil)), func(ctx context.Context) error {
			<-ctx.Done()
			want(t, "the cause", context.Cause(ctx), core.ErrLost)
			time.Sleep(time.Hour)
			return nil
		}, core.WithMaxHold(20*time.Second))
		synctest.Wait()
		other := every(locker(t, b), j.run(t, time.Second))
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if runs := j.seen(); len(runs) != 2 || runs[0] > 30*time.Second {
			t.Errorf("the other instance ran at %v", runs)
		}
		stopped(t, stop)
		stopped(t, other)
		if got := m.read(t)["onelane.every.duration{onelane.job=report,onelane.outcome=lost}"]; got != 1 {
			t.Errorf("%d lost runs are counted", got)
		}
	})
}

// The Locker's own options about waits and orphans are not those of a job.
func TestEvery_LockerOptions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, j := backendtest.Memory(), newJob()
		opts := []core.Option{core.WithWait(0), core.WithOrphan(time.Hour)}
		dying := &place{MemoryBackend: b}
		stop := every(locker(t, dying, opts...), func(ctx context.Context) error {
			dying.away.Store(true)
			<-ctx.Done()
			return nil
		})
		synctest.Wait()
		other := every(locker(t, b, opts...), j.run(t, time.Second))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if runs := j.seen(); len(runs) != 1 {
			t.Errorf("the other instance ran at %v", runs)
		}
		stopped(t, stop)
		stopped(t, other)
	})
}

func TestEvery_RefusedCalls(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	for name, call := range map[string]func() error{
		"no Locker":   func() error { return core.Every(t.Context(), nil, "report", minute, nothing) },
		"no function": func() error { return core.Every(t.Context(), l, "report", minute, nil) },
		"interval":    func() error { return core.Every(t.Context(), l, "report", 0, nothing) },
		"name":        func() error { return core.Every(t.Context(), l, "", minute, nothing) },
		"long name":   func() error { return core.Every(t.Context(), l, strings.Repeat("x", 505), minute, nothing) },
		"WithOrphan": func() error {
			return core.Every(t.Context(), l, "report", minute, nothing, core.WithOrphan(time.Hour))
		},
		"WithWait": func() error { return core.Every(t.Context(), l, "report", minute, nothing, core.WithWait(0)) },
		"WithMisfireGrace": func() error {
			return core.Every(t.Context(), l, "report", minute, nothing, core.WithMisfireGrace(0))
		},
		"WithTTL": func() error { return core.Every(t.Context(), l, "report", minute, nothing, core.WithTTL(-1)) },
		"inside": func() error {
			k := acquire(t, l, "every:report")
			defer func() { ok(t, "Release", k.Release(context.Background())) }()
			return core.Every(core.WithLock(t.Context(), k), l, "report", minute, nothing)
		},
	} {
		if err := call(); err == nil || !strings.HasPrefix(err.Error(), "core: ") || errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, "Every with a context that has ended", core.Every(ended, l, "report", minute, nothing), context.Canceled)
	closed, err := core.New(backendtest.Memory())
	ok(t, "New", err)
	ok(t, "Close", closed.Close())
	want(t, "Every on a closed Locker", core.Every(t.Context(), closed, "report", minute, nothing), core.ErrClosed)
}

// A record that cannot be read stops the job and is logged, until the key is unsealed.
func TestEvery_ForeignRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := locker(t, backendtest.Memory(), core.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		j := newJob()
		k := acquire(t, l, "every:report:last")
		ok(t, "Seal", k.Seal(t.Context(), []byte("another program's"), time.Hour))
		stop := every(l, j.run(t, time.Second))
		time.Sleep(minute)
		synctest.Wait()
		j.began(t)
		if !strings.Contains(log.String(), `every:report:last`) {
			t.Errorf("the log does not name the key:\n%s", &log)
		}
		ok(t, "Unseal", l.Unseal(t.Context(), "every:report:last"))
		time.Sleep(10 * time.Second)
		if stopped(t, stop); len(j.runs) != 1 {
			t.Errorf("%d runs", len(j.runs))
		}
	})
}
