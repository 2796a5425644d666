//go:build unix

package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// pausedTTL is the first TTL of a case. A holder that loses its lease too early is tried again with more.
const pausedTTL = time.Second

// blind is a backend whose leases seem to go on: that of a process whose clock stood still while it was stopped.
type blind struct{ core.Sealer }

// blindly opens blind backends.
type blindly struct{ core.Opener }

func (o blindly) Open(env core.Environment) (core.Backend, error) {
	b, err := o.Opener.Open(env)
	if err != nil {
		return nil, err
	}
	return blind{b.(core.Sealer)}, nil
}

func (b blind) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	g.Deadline = time.Now().Add(time.Hour)
	return g, err
}

func (b blind) Extend(_ context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	return g, nil
}

// pause is one case: where the holder is stopped, whether it can know that its lock is lost, and the isolation.
type pause struct {
	where string
	blind bool
	level sql.IsolationLevel
	sku   int
	ttl   time.Duration
}

func (p pause) String() string {
	return fmt.Sprintf("%s, blind=%v, %v, %d", p.where, p.blind, p.level, p.sku)
}

// argument tells a child all of the case.
func (p pause) argument() string { return fmt.Sprintf("%v %v", p.ttl, p) }

// parsePause reads what argument wrote.
func parsePause(argument string) (p pause, err error) {
	ttl, text, _ := strings.Cut(argument, " ")
	p = parseCase(text)
	p.ttl, err = time.ParseDuration(ttl)
	return p, err
}

func (p pause) key() string { return fmt.Sprintf("stock:%d", p.sku) }

const (
	pausedLocked = "with the lock"
	pausedBefore = "after a read before the transaction"
	pausedInside = "after a read in the transaction"
)

func parseCase(text string) (p pause) {
	for _, p.where = range []string{pausedLocked, pausedBefore, pausedInside} {
		if rest, found := strings.CutPrefix(text, p.where); found {
			var level string
			_, _ = fmt.Sscanf(strings.ReplaceAll(rest, ",", ""), " blind=%t %s", &p.blind, &level)
			if level == "Repeatable" {
				p.level = sql.LevelRepeatableRead
			}
			_, _ = fmt.Sscan(text[strings.LastIndex(text, " "):], &p.sku)
			return p
		}
	}
	return p
}

// pausedHolder is a child: it takes one unit the naive way, read, decide, write, and is stopped in the middle.
func pausedHolder(c *childProcess) error {
	p, err := parsePause(c.argument)
	if err != nil {
		return err
	}
	backend := patientRedis(c.redis)
	if p.blind {
		backend = blindly{backend}
	}
	l, err := core.New(backend, core.WithTTL(p.ttl), core.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	db, err := c.open_(c.conns)
	if err == nil {
		err = db.Use(gormlock.New(l, gormlock.Fenced()))
	}
	if err != nil {
		return err
	}
	var s Stock
	stop := func() error {
		c.say("here")
		return c.wait()
	}
	read := func(db *gorm.DB) error { return db.Take(&s, "sku = ?", p.sku).Error }
	sell := func(ctx context.Context, steps ...func(*gorm.DB) error) error {
		ctx = gormlock.WithGuard(ctx, p.key())
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			for _, step := range steps {
				if err := step(tx); err != nil {
					return err
				}
			}
			return tx.Model(&Stock{}).Where("sku = ?", p.sku).Update("left", s.Left-1).Error
		}, &sql.TxOptions{Isolation: p.level})
	}
	here := func(*gorm.DB) error { return stop() }
	switch p.where {
	case pausedLocked:
		err = sell(context.Background(), here, read)
	case pausedInside:
		err = sell(context.Background(), read, here)
	case pausedBefore:
		var k *core.Lock
		// With its token: a token that is minted later would show the loss.
		if k, err = l.Acquire(context.Background(), p.key(), core.WithToken()); err == nil {
			if err = errors.Join(read(db), stop()); err == nil {
				err = sell(core.WithLock(context.Background(), k))
			}
		}
	}
	switch {
	case errors.Is(err, gormlock.ErrFenced):
		c.say("fenced off")
	case errors.Is(err, core.ErrLost):
		c.say("lost")
	default:
		c.say("%v", err)
	}
	return nil
}

// TestFenced_PausedHolder: a holder is stopped beyond its TTL, another one sells, the first wakes.
// Nothing of the first is committed, even if it cannot know that its lock is lost. A holder that
// was stopped in its transaction has the fence, so nobody else can sell. If it commits, the commit
// is not based on an old read.
func TestFenced_PausedHolder(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	// The holder is a separate process, and prepares nothing.
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		ok(t, "Migrate", gormlock.Migrate(db))
		ok(t, "Use", db.Use(gormlock.New(locker(t, patientRedis(node.Client())), gormlock.Fenced())))
		var holders sync.WaitGroup // most of their time they are stopped
		defer holders.Wait()
		running := make(chan struct{}, 4)
		sku := int(time.Now().UnixNano() % 1_000_000_000)
		if db.Name() == "sqlite" {
			running = make(chan struct{}, 1)
			pool(t, db).SetMaxOpenConns(1)
			ok(t, "PRAGMA", db.Exec("PRAGMA busy_timeout = 500").Error)
		}
		for _, p := range []pause{
			{where: pausedLocked}, {where: pausedLocked, blind: true}, {where: pausedLocked, blind: true, level: sql.LevelRepeatableRead},
			{where: pausedBefore, level: sql.LevelRepeatableRead}, {where: pausedBefore, blind: true}, {where: pausedBefore, blind: true, level: sql.LevelRepeatableRead},
			{where: pausedInside, level: sql.LevelRepeatableRead}, {where: pausedInside, blind: true},
		} {
			if db.Name() == "sqlite" { // has one isolation, and a stopped transaction stops everybody
				if p.blind && p.level != sql.LevelDefault {
					continue // the case before it
				}
				p.level = sql.LevelDefault
			}
			sku++
			p.sku = sku
			running <- struct{}{} // on SQLite, a stopped holder keeps others from writing
			put(t, db, p.sku, 10)
			holders.Go(func() {
				defer func() { <-running }()
				t.Run(p.String(), func(t *testing.T) { wakesUp(t, db, node.Addr(), p) })
			})
		}
	})
}

func wakesUp(t *testing.T, db *gorm.DB, redisAddr string, p pause) {
	sell := func(wait time.Duration) error {
		return gormlock.Transaction(db, p.key(), func(tx *gorm.DB) error { return take(tx, p.sku) }, gormlock.WithWait(wait))
	}
	var c *child
	for p.ttl = pausedTTL; ; p.ttl *= 4 {
		c = startChild(t, "holder", redisAddr, db, p.argument())
		said := c.hears()
		if said == "here" {
			break
		}
		if said != "lost" || p.ttl >= 16*pausedTTL {
			t.Fatalf("with a TTL of %v, the child said %q", p.ttl, said)
		}
	}
	c.signal(syscall.SIGSTOP)
	var n int64 = 10
	if p.where == pausedInside {
		if err := sell(p.ttl); err == nil {
			t.Fatal("another holder sold beside a transaction that has the fence")
		}
	} else {
		ok(t, "another holder sells", sell(30*time.Second)) // when the lease has run out
		n--
	}
	c.signal(syscall.SIGCONT)
	c.tell()
	switch {
	case p.where == pausedInside && p.blind:
		c.want("<nil>")
		n--
	case p.blind:
		c.want("fenced off")
	default:
		c.want("lost")
	}
	wantLeft(t, db, p.sku, n)
	ok(t, "another holder sells", sell(30*time.Second))
	wantLeft(t, db, p.sku, n-1)
}
