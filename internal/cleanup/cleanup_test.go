package cleanup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/internal/cleanup"
)

var errDown = errors.New("the server is down")

// server is what keys are freed at. It notes each try.
type server struct {
	mu    sync.Mutex
	down  bool
	hangs bool
	tries map[string][]time.Duration // since the start, by key
	begin time.Time
}

func newServer() *server {
	return &server{tries: make(map[string][]time.Duration), begin: time.Now()}
}

func (s *server) set(down, hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.hangs = down, hangs
}

// free returns the function that frees a key.
func (s *server) free(key string) func(context.Context) error {
	return func(ctx context.Context) error {
		s.mu.Lock()
		s.tries[key] = append(s.tries[key], time.Since(s.begin))
		down, hangs := s.down, s.hangs
		s.mu.Unlock()
		if hangs {
			<-ctx.Done()
			return ctx.Err()
		}
		if down {
			return errDown
		}
		return nil
	}
}

func (s *server) triesOf(key string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tries[key])
}

// all counts the tries of all keys.
func (s *server) all() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, tries := range s.tries {
		n += len(tries)
	}
	return n
}

// log keeps the lines that are logged.
type log struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *log) Enabled(context.Context, slog.Level) bool { return true }

func (l *log) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return nil
}

func (l *log) want(t *testing.T, lines ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.lines, lines) {
		t.Errorf("logged\n%s\nwant\n%s", strings.Join(l.lines, "\n"), strings.Join(lines, "\n"))
	}
}

// run runs a test with a fake clock, a queue and its server.
func run(t *testing.T, once bool, test func(t *testing.T, q *cleanup.Queue, s *server, l *log)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &log{Handler: slog.DiscardHandler}
		logger := slog.New(l)
		q := cleanup.NewQueue(cleanup.Config{Logger: func() *slog.Logger { return logger }, Once: once},
			"too many", "gave up")
		defer q.Close(0)
		test(t, q, newServer(), l)
	})
}

func wantTries(t *testing.T, s *server, key string, tries ...time.Duration) {
	t.Helper()
	if got := s.triesOf(key); !slices.Equal(got, tries) {
		t.Errorf("%s was tried at %v, want %v", key, got, tries)
	}
}

// A request may overtake its clean-up, which therefore happens more than once.
func TestQueue_RepeatsWhatSucceeded(t *testing.T) {
	run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, l *log) {
		q.Add("k", time.Second, s.free("k"))
		time.Sleep(time.Hour)
		const ms = time.Millisecond
		wantTries(t, s, "k", 0, 20*ms, 220*ms, 2220*ms, 12220*ms)
		l.want(t)
	})
}

func TestQueue_Once(t *testing.T) {
	run(t, true, func(t *testing.T, q *cleanup.Queue, s *server, _ *log) {
		q.Add("k", time.Second, s.free("k"))
		time.Sleep(time.Hour)
		wantTries(t, s, "k", 0)
	})
}

func TestQueue_Outage(t *testing.T) {
	run(t, true, func(t *testing.T, q *cleanup.Queue, s *server, l *log) {
		s.set(true, false)
		for i := range 1000 {
			key := fmt.Sprint(i)
			q.Add(key, time.Hour, s.free(key))
		}
		time.Sleep(time.Minute)
		if n := s.all(); n < 100 || n > 600 {
			t.Errorf("%d tries in a minute, want about four a second", n)
		}
		if n := q.Waiting(); n != 1000 {
			t.Errorf("%d keys wait, want 1000", n)
		}
		s.set(false, false)
		time.Sleep(2 * time.Second)
		if n := q.Waiting(); n != 0 {
			t.Errorf("%d keys wait two seconds after the outage", n)
		}
		if n := len(s.triesOf("999")); n != 1 {
			t.Errorf("%d tries of the last key, want 1", n)
		}
		l.want(t)
	})
}

// A key is tried for two minutes at least, and for as long as it may be held.
func TestQueue_GivesUpAtTheDeadline(t *testing.T) {
	for lasts, tried := range map[time.Duration]time.Duration{time.Second: 2 * time.Minute, time.Hour: time.Hour} {
		t.Run(lasts.String(), func(t *testing.T) {
			run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, l *log) {
				s.set(true, false)
				q.Add("k", lasts, s.free("k"))
				time.Sleep(2 * time.Hour)
				tries := s.triesOf("k")
				if last := tries[len(tries)-1]; last < tried || last > tried+2*time.Second {
					t.Errorf("the last try was after %v, want %v", last, tried)
				}
				l.want(t, "gave up waiting=1 key=k error=the server is down")
				if q.Waiting() != 0 {
					t.Error("the key still waits")
				}
			})
		})
	}
}

func TestQueue_Full(t *testing.T) {
	run(t, true, func(t *testing.T, q *cleanup.Queue, s *server, l *log) {
		const room = 1 << 14
		s.set(true, false)
		for range room {
			q.Add("k", time.Minute, s.free("k"))
		}
		q.Add("one more", time.Minute, s.free("one more"))
		s.set(false, false)
		time.Sleep(time.Minute)
		wantTries(t, s, "one more")
		l.want(t, fmt.Sprintf("too many waiting=%d key=one more", room))
		q.Add("later", time.Minute, s.free("later"))
		synctest.Wait()
		wantTries(t, s, "later", time.Minute)
	})
}

func TestQueue_KeysToRepeatDoNotWait(t *testing.T) {
	run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, _ *log) {
		q.Add("k", time.Minute, s.free("k"))
		synctest.Wait()
		if n := q.Waiting(); n != 0 {
			t.Errorf("%d keys wait, want none", n)
		}
	})
}

func TestQueue_CloseWaitsForTries(t *testing.T) {
	run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, l *log) {
		s.set(true, false)
		q.Add("k", time.Minute, s.free("k"))
		time.AfterFunc(20*time.Millisecond, func() {
			s.set(false, false)
			q.Add("late", time.Minute, s.free("late"))
		})
		q.Close(time.Second)
		tries := s.triesOf("k")
		if len(tries) < 3 || time.Since(s.begin) >= time.Second {
			t.Fatalf("Close returned after %v and the tries %v; want a success and its repetition", time.Since(s.begin), tries)
		}
		if pause := tries[len(tries)-1] - tries[len(tries)-2]; pause != 20*time.Millisecond {
			t.Errorf("the repetition came %v after the success, want 20ms", pause)
		}
		q.Close(time.Second)
		time.Sleep(time.Hour)
		wantTries(t, s, "late")
		l.want(t)
	})
}

// Close frees a key that waits for a repetition once more, at once.
func TestQueue_CloseRepeatsAtOnce(t *testing.T) {
	run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, _ *log) {
		q.Add("k", time.Minute, s.free("k"))
		time.Sleep(time.Second)
		before := len(s.triesOf("k"))
		q.Close(time.Minute)
		if took := time.Since(s.begin) - time.Second; took != 0 {
			t.Errorf("Close took %v", took)
		}
		if n := len(s.triesOf("k")) - before; n != 1 {
			t.Errorf("Close made %d tries, want 1", n)
		}
	})
}

func TestQueue_CloseEndsAfterItsGrace(t *testing.T) {
	run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, l *log) {
		s.set(false, true)
		for range 100 {
			q.Add("k", time.Hour, s.free("k"))
		}
		q.Close(time.Second)
		if took := time.Since(s.begin); took != time.Second {
			t.Errorf("Close took %v, want its grace of 1s", took)
		}
		tries := s.all()
		if tries != cleanup.Workers {
			t.Errorf("%d tries at a time, want %d", tries, cleanup.Workers)
		}
		time.Sleep(time.Hour)
		if n := s.all() - tries; n != 0 {
			t.Errorf("%d tries after Close", n)
		}
		l.want(t)
	})
}

func TestQueue_CloseWithoutKeys(t *testing.T) {
	run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, _ *log) {
		q.Close(time.Hour)
		if took := time.Since(s.begin); took != 0 {
			t.Errorf("Close took %v", took)
		}
	})
}

// Tries of a key that take some time must not keep the workers from pausing.
func TestQueue_OutageOfSlowTries(t *testing.T) {
	for _, keys := range []int{1, 3, 100} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			run(t, true, func(t *testing.T, q *cleanup.Queue, s *server, _ *log) {
				s.set(true, false)
				for i := range keys {
					key := fmt.Sprint(i)
					free := s.free(key)
					q.Add(key, time.Hour, func(ctx context.Context) error {
						time.Sleep(20 * time.Millisecond)
						return free(ctx)
					})
				}
				time.Sleep(time.Minute)
				if n := s.all(); n < 30 || n > 600 {
					t.Errorf("%d tries in a minute, want about four a second", n)
				}
			})
		})
	}
}

// Keys that are freed again only to be sure give way to keys that may be held.
func TestQueue_FullOfRepetitions(t *testing.T) {
	run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, l *log) {
		for range 1 << 14 {
			q.Add("k", time.Minute, s.free("k"))
		}
		time.Sleep(5 * time.Second)
		q.Add("held", time.Minute, s.free("held"))
		synctest.Wait()
		wantTries(t, s, "held", 5*time.Second)
		l.want(t)
	})
}

// An outage that ended just before Close costs no key.
func TestQueue_CloseEndsPauses(t *testing.T) {
	for _, keys := range []int{1, 4, 100} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			run(t, true, func(t *testing.T, q *cleanup.Queue, s *server, _ *log) {
				s.set(true, false)
				for i := range keys {
					key := fmt.Sprint(i)
					q.Add(key, time.Hour, s.free(key))
				}
				time.Sleep(time.Minute)
				s.set(false, false)
				before := s.all()
				q.Close(time.Second)
				if took := time.Since(s.begin) - time.Minute; took != 0 {
					t.Errorf("Close took %v", took)
				}
				if n := s.all() - before; n != keys {
					t.Errorf("Close freed %d keys, want %d", n, keys)
				}
			})
		})
	}
}

// A call may end after its caller has left and Close has begun.
func TestQueue_CloseAwaitsCalls(t *testing.T) {
	for ends, want := range map[time.Duration][]time.Duration{
		500 * time.Millisecond: {500 * time.Millisecond, 520 * time.Millisecond},
		time.Minute:            nil,
	} {
		t.Run(ends.String(), func(t *testing.T) {
			run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, _ *log) {
				late := make(chan struct{})
				q.AddAfter(late, "late", time.Minute, s.free("late"))
				done := q.Expect()
				q.Expect()() // ends before
				time.AfterFunc(ends, func() {
					close(late)
					q.Add("k", time.Minute, s.free("k"))
					done()
				})
				q.Close(time.Second)
				took := time.Since(s.begin)
				if whole := took >= time.Second; took > time.Second || whole != (ends > time.Second) {
					t.Errorf("Close took %v, want its grace of 1s, and less if the calls end", took)
				}
				q.AddAfter(late, "after Close", time.Minute, s.free("after Close"))
				time.Sleep(time.Hour)
				wantTries(t, s, "late", want...)
				wantTries(t, s, "k", want...)
				wantTries(t, s, "after Close")
			})
		})
	}
}

// After its grace Close does not interrupt the try that is under way.
func TestQueue_CloseWaitsForTheTryUnderWay(t *testing.T) {
	run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, _ *log) {
		over := false
		q.Add("k", time.Minute, func(context.Context) error {
			time.Sleep(5 * time.Second)
			over = true
			return nil
		})
		synctest.Wait()
		if q.Close(time.Second); !over {
			t.Errorf("Close returned after %v, and a try is under way", time.Since(s.begin))
		}
	})
}
