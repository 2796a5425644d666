package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// timetable checks what happens to a job. Each instance is a place with latency, whose seals of the
// job's record it sees.
type timetable struct {
	t    *testing.T
	seed uint64
	mu   sync.Mutex
	rand *rand.Rand

	first, due, over time.Time // of the first record, of the last one, of the last run
	recorded         int       // slots
	text             string    // the record
	skipped          int64     // between them
	unsettled        *attempt  // the last run, until its slot is recorded
	runs             int
}

// attempt is a run of a job's function.
type attempt struct {
	in        *instance
	began     time.Time
	disturbed bool // its instance was cut off or stopped
	succeeded bool
}

type instance struct {
	place
	all     *timetable
	current *attempt // guarded by timetable.mu
}

func (s *timetable) errorf(format string, args ...any) {
	s.t.Errorf("seed %d, %v after the first slot: "+format, append([]any{s.seed, time.Since(s.first)}, args...)...)
}

func (s *timetable) n(d time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.rand.Int64N(int64(d)))
}

func (i *instance) Inspect(ctx context.Context, key string) (core.State, error) {
	time.Sleep(i.all.n(20 * time.Millisecond))
	defer time.Sleep(i.all.n(20 * time.Millisecond))
	return i.place.Inspect(ctx, key)
}

func (i *instance) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	time.Sleep(i.all.n(20 * time.Millisecond))
	err := i.place.Seal(ctx, g, value, retention)
	if err == nil && isRecord(g.Key) {
		i.all.look(i)
	}
	return err
}

func (i *instance) Unseal(ctx context.Context, key string) error {
	err := i.place.Unseal(ctx, key)
	if err == nil && isRecord(key) {
		i.all.look(i)
	}
	return err
}

// look checks the record after an instance changed it.
func (s *timetable) look(i *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest, text := 0, ""
	for _, name := range []string{"last", "last2"} {
		st, err := i.MemoryBackend.Inspect(context.Background(), "onelane:{every:report:"+name+"}")
		ok(s.t, "Inspect", err)
		if st.Status != core.Sealed {
			continue
		}
		var number int
		_, err = fmt.Sscan(string(st.Value), &number)
		if ok(s.t, "the record", err); number > newest {
			newest, text = number, string(st.Value)
		}
	}
	switch {
	case text == "" && s.recorded > 0:
		s.errorf("no record is left")
	case text != s.text:
		s.text = text
		s.recordLocked(i)
	}
}

// recordLocked checks a record that is new.
func (s *timetable) recordLocked(i *instance) {
	var number, n int
	_, err := fmt.Sscan(s.text, &number, &n)
	ok(s.t, "the record", err)
	due := time.Now().Add(-time.Duration(n) * time.Microsecond)
	if s.recorded++; s.recorded == 1 {
		s.first = due
	} else {
		gap := due.Sub(s.due)
		whole := gap.Round(minute)
		if whole < minute || (gap-whole).Abs() > time.Second {
			s.errorf("the slot after %v was due %v later", s.due.Sub(s.first), gap)
		}
		s.skipped += int64(whole/minute) - 1
	}
	s.due = due
	switch a := s.unsettled; {
	case a == nil || a.in != i || !a.succeeded:
		s.errorf("a slot was recorded without a run: %+v", a)
	case a.began.Before(due.Add(-time.Second)) || a.began.After(due.Add(minute)):
		s.errorf("a run that began at %v was recorded as the slot of %v", a.began.Sub(s.first), due.Sub(s.first))
	}
	s.unsettled = nil
}

// disturb marks the run of an instance.
func (i *instance) disturb() {
	i.all.mu.Lock()
	defer i.all.mu.Unlock()
	if i.current != nil {
		i.current.disturbed = true
	}
}

// run is the job's function.
func (i *instance) run(ctx context.Context) error {
	s, a := i.all, &attempt{in: i, began: time.Now()}
	takes := s.n(40 * time.Second)
	if s.n(10) == 0 {
		takes *= 10 // longer than the interval
	}
	s.mu.Lock()
	s.runs++
	if last := s.unsettled; last != nil && !last.disturbed {
		s.errorf("a run begins, and nothing happened to the one before, which is not recorded")
	}
	if time.Now().Before(s.over) {
		s.errorf("two runs at a time")
	}
	if s.recorded > 0 && a.began.Before(s.due.Add(minute-time.Second)) {
		s.errorf("a run begins, and its slot of %v is recorded", s.due.Sub(s.first))
	}
	i.current, s.unsettled = a, a
	s.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = time.Now()
	a.succeeded = ctx.Err() == nil
	a.disturbed = a.disturbed || !a.succeeded
	return ctx.Err()
}

// live is one instance from its start to its end.
func (s *timetable) live(b *backendtest.MemoryBackend, m *meters, end <-chan struct{}) {
	i := &instance{all: s}
	i.MemoryBackend = b
	l, err := core.New(i, core.WithTelemetry(m, nil))
	ok(s.t, "New", err)
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- core.Every(ctx, l, "report", minute, i.run) }()
	for {
		stops := false
		select {
		case <-time.After(s.n(10 * minute)):
			stops = s.n(3) == 0
		case <-end:
			i.away.Store(false)
			<-time.After(10 * minute)
			stops = true
		}
		if !stops || s.n(2) == 0 { // cut off, for longer than a lease or not; or killed
			i.away.Store(true)
			i.disturb()
			time.Sleep(s.n(30 * time.Second))
		}
		if stops {
			cancel()
			i.disturb()
			want(s.t, "Every", <-done, context.Canceled)
			return
		}
		i.away.Store(false)
		i.disturb()
	}
}

// Instances come, are cut off, stop and die at random. No two run at a time, and no recorded slot
// runs again. A slot runs again only if something happened to its run. Each slot runs or is counted.
func TestEvery_Model(t *testing.T) {
	seeds := uint64(15)
	if long {
		seeds = 300
	}
	runs, recorded, skipped := 0, 0, int64(0)
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			s := &timetable{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 37))}
			b, m, end := backendtest.Memory(), newMeters(), make(chan struct{})
			var lives sync.WaitGroup
			for range 1 + s.n(4) {
				lives.Go(func() {
					for {
						select {
						case <-time.After(s.n(5 * minute)):
							s.live(b, m, end)
						case <-end:
							return
						}
					}
				})
			}
			time.Sleep(2 * time.Hour)
			close(end)
			lives.Go(func() { s.live(b, m, end) })
			lives.Wait()
			if slots := s.due.Sub(s.first).Round(minute)/minute + 1; int64(s.recorded)+s.skipped != int64(slots) {
				s.errorf("%d slots are recorded and %d between them, of %d", s.recorded, s.skipped, slots)
			}
			if got := m.read(t)["onelane.every.skipped{onelane.job=report}"]; got != s.skipped {
				s.errorf("%d slots are counted as skipped, %d were", got, s.skipped)
			}
			// One after the other, two runs may take ten times 40 s, and the last one is cut off.
			if late := time.Since(s.due); late > 15*minute {
				s.errorf("no slot since %v", late)
			}
			runs, recorded, skipped = runs+s.runs, recorded+s.recorded, skipped+s.skipped
		})
	}
	t.Logf("%d runs, %d slots recorded, %d skipped", runs, recorded, skipped)
	if runs == recorded || skipped == 0 {
		t.Error("this test tests too little")
	}
}
