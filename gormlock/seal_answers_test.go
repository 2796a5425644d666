package gormlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// slowAnswer keeps the answer to the next Acquire that meets a seal, after the backend has decided.
type slowAnswer struct {
	core.Sealer
	once     sync.Once
	answered chan struct{} // closed when the backend has decided
	goOn     chan struct{}
}

func newSlowAnswer(b core.Sealer) *slowAnswer {
	return &slowAnswer{Sealer: b, answered: make(chan struct{}), goOn: make(chan struct{})}
}

func (b *slowAnswer) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *slowAnswer) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	if errors.Is(err, core.ErrSealed) {
		b.once.Do(func() {
			close(b.answered)
			<-b.goOn
		})
	}
	return g, err
}

// soldOutElsewhere makes 42 sold out by another process, which seals its key "k".
func soldOutElsewhere(t *testing.T, db *gorm.DB, b core.Opener) (elsewhere *core.Locker, other *gorm.DB) {
	t.Helper()
	other, err := gorm.Open(db.Dialector, &gorm.Config{Logger: db.Logger})
	ok(t, "Open", err)
	elsewhere = locker(t, b)
	ok(t, "Use", other.Use(gormlock.New(elsewhere)))
	put(t, other, 42, 0)
	sellsOut(t, "sold out", elsewhere, func() error { return sellers["Transaction"](other, 42, 1) })
	return elsewhere, other
}

// Without RememberSeals every guard asks. So a buyer who comes after a restock does not get the answer
// to a question from before.
func TestGrouped_NoOldSeal(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		memory := backendtest.Memory()
		_, other := soldOutElsewhere(t, db, memory)
		slow := newSlowAnswer(memory)
		ok(t, "Use", db.Use(gormlock.New(locker(t, slow), gormlock.WithWait(time.Minute))))

		var both sync.WaitGroup
		var early, late error
		both.Go(func() { early = sellers["Grouped"](db, 42, 1) })
		<-slow.answered
		ok(t, "Reopen", gormlock.Transaction(other, "k", func(tx *gorm.DB) error { return refund(tx, 5) }, gormlock.Reopen()))
		wantLeft(t, other, 42, 5)
		both.Go(func() { late = sellers["Grouped"](db, 42, 1) }) // there are 5, and the key is free
		eventually(t, "the late buyer waits", func() bool { return gormlock.Waiting(db) == 2 })
		close(slow.goOn)
		both.Wait()
		want(t, "a buyer who asked before it", early, gormlock.ErrInsufficient)
		ok(t, "a buyer who came after the restock", late)
	})
}

// stopAfterWait is a MeterProvider that stops a guard just after its answer came and before it is
// remembered.
type stopAfterWait struct {
	metricnoop.MeterProvider
	at, goOn chan struct{}
}

type stoppingMeter struct {
	metricnoop.Meter
	p *stopAfterWait
}

type stoppingHistogram struct {
	metricnoop.Float64Histogram
	p *stopAfterWait
}

func (p *stopAfterWait) Meter(string, ...metric.MeterOption) metric.Meter {
	return stoppingMeter{p: p}
}

func (m stoppingMeter) Float64Histogram(name string, o ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	if name == "onelane.gormlock.wait.duration" {
		return stoppingHistogram{p: m.p}, nil
	}
	return m.Meter.Float64Histogram(name, o...)
}

type slowBuyer struct{}

func (h stoppingHistogram) Record(ctx context.Context, _ float64, _ ...metric.RecordOption) {
	if ctx.Value(slowBuyer{}) != nil {
		close(h.p.at)
		<-h.p.goOn
	}
}

// A buyer learns of the seal, then the key is opened. The buyer goes on, and must not make the process
// remember the seal again.
func TestRememberSeals_NotAfterReopen(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		memory := backendtest.Memory()
		soldOutElsewhere(t, db, memory)
		stop := &stopAfterWait{at: make(chan struct{}), goOn: make(chan struct{})}
		l := locker(t, memory, core.WithTelemetry(stop, nil))
		ok(t, "Use", db.Use(gormlock.New(l, gormlock.RememberSeals(time.Hour))))

		done := make(chan error)
		go func() {
			done <- sellers["Transaction"](db.WithContext(context.WithValue(t.Context(), slowBuyer{}, true)), 42, 1)
		}()
		<-stop.at // it knows that the key is sealed
		ok(t, "Reopen", giveBack["Transaction"](db, 5))
		close(stop.goOn)
		want(t, "the buyer from before", <-done, gormlock.ErrInsufficient)

		wantLeft(t, db, 42, 5)
		if sealed(t, l, "k") {
			t.Fatal("it is sealed")
		}
		ok(t, "a buyer after the restock of its own process", sellers["Transaction"](db, 42, 1))
	})
}

// "An Unseal … is noticed up to d later": d counts from the Unseal, also if an answer is late.
func TestRememberSeals_LateAnswer(t *testing.T) {
	const d = 300 * time.Millisecond
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		memory := backendtest.Memory()
		_, other := soldOutElsewhere(t, db, memory)
		slow := newSlowAnswer(memory)
		ok(t, "Use", db.Use(gormlock.New(locker(t, slow), gormlock.RememberSeals(d), gormlock.WithWait(time.Minute))))

		done := make(chan error)
		go func() { done <- sellers["Transaction"](db, 42, 1) }()
		<-slow.answered
		ok(t, "Reopen", gormlock.Transaction(other, "k", func(tx *gorm.DB) error { return refund(tx, 5) }, gormlock.Reopen()))
		opened := time.Now()
		eventually(t, "the time of RememberSeals has passed", func() bool { return time.Since(opened) > d })
		close(slow.goOn)
		want(t, "the buyer from before", <-done, gormlock.ErrInsufficient)
		ok(t, "a buyer more than d after the restock", sellers["Transaction"](db, 42, 1))
	})
}

// As an option of New, Reopen would let every guard open what is sold out.
func TestReopen_NotForAllGuards(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		err := db.Use(gormlock.New(locker(t, backendtest.Memory()), gormlock.Reopen()))
		if err == nil || !strings.Contains(err.Error(), "give it to the guard that puts stock back") {
			t.Errorf("db.Use: %v", err)
		}
	})
}
