package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// Entry is what one call writes into the books.
type Entry struct {
	Call int `gorm:"primaryKey;autoIncrement:false"`
	Line int `gorm:"primaryKey;autoIncrement:false"`
}

// chaos is how wild it gets.
type chaos struct {
	group  func() int           // its size
	wait   func() time.Duration // of a caller for its turn
	short  int                  // one context of so many ends soon
	faults time.Duration        // between two, at most
}

// call is one call with the outcome that its caller got: the books must say the same.
type call struct {
	id      int
	key     string // there are two, so that groups run into deadlocks
	ran     int
	written int // lines, as its function knows
	group   uint64
	err     error
}

// TestGrouped_Books: connections are cut at any place, and the server ends and interrupts them.
// There are deadlocks, locks are lost, contexts end, and groups take too long. Functions fail,
// panic and go on after errors. If a caller got success, all that it wrote is in the books. If a
// caller got a failure, nothing of it is there. No function ran twice.
func TestGrouped_Books(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Entry{}))
		put(t, db, 42, 100000)
		put(t, db, 43, 100000)
		if db.Name() == "postgres" {
			ok(t, "ALTER", db.Exec("ALTER DATABASE "+db.Migrator().CurrentDatabase()+" SET deadlock_timeout = 5").Error)
		}
		keys := []string{"k", "j"}
		through, p := behindProxy(t, db)
		if p == nil {
			through, keys = db, keys[:1] // one writer is at work in SQLite
		} else {
			defer p.chance.Store(0)
			p.chance.Store(5)
		}
		h := &hooked{Sealer: backendtest.Memory()}
		l := locker(t, h, core.WithTTL(150*time.Millisecond))
		ok(t, "Use", through.Use(gormlock.New(l)))
		gormlock.SetGroupTimes(through, 20*time.Millisecond, 300*time.Millisecond)
		pool(t, through).SetMaxOpenConns(4)
		small := chaos{
			group: func() int { return 1 + rand.IntN(8) },
			wait:  func() time.Duration { return 10*time.Millisecond + rand.N(2*time.Second) },
			short: 4, faults: 20 * time.Millisecond,
		}

		var mu sync.Mutex
		var all []*call
		oneMore := func() error {
			mu.Lock()
			c := &call{id: len(all) + 1, key: keys[rand.IntN(len(keys))]}
			all = append(all, c)
			mu.Unlock()
			c.err = c.run(t.Context(), through, small)
			return c.err
		}
		done := make(chan struct{})
		var callers, faults sync.WaitGroup
		calls := 5
		if long {
			calls = 15
		}
		for range 24 {
			callers.Go(func() {
				for range calls {
					_ = oneMore()
				}
			})
		}
		faults.Go(func() { disturb(t, db, h, small.faults, done) })
		callers.Wait()
		close(done)
		faults.Wait()
		if p != nil {
			p.chance.Store(0)
		}
		// On a slow machine, none may have lasted until its COMMIT among so many faults, or in so short a time.
		gormlock.SetGroupTimes(through, 0, 0)
		eventually(t, "a call succeeds", func() bool { return oneMore() == nil })
		eventually(t, "nothing is held", func() bool {
			return inUse(t, through) == 0 && !held(t, l, "k") && !held(t, l, "j") && gormlock.Queues(through) == 0
		})
		audit(t, db, all)
	})
}

// run is one call, with a function that may do anything wrong.
func (c *call) run(ctx context.Context, db *gorm.DB, how chaos) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if rand.IntN(how.short) == 0 {
		short, cancel := context.WithTimeout(ctx, rand.N(30*time.Millisecond))
		defer cancel()
		ctx = short
	}
	return gormlock.Transaction(db.WithContext(ctx), c.key, func(tx *gorm.DB) error {
		c.ran++
		c.group, _ = gormlock.Token(tx)
		write := func(tx *gorm.DB) error {
			err := tx.Create(&Entry{Call: c.id, Line: c.written}).Error
			if err == nil {
				c.written++
			}
			return err
		}
		if err := errors.Join(write(tx), take(tx, 42+c.id%2), take(tx, 43-c.id%2)); err != nil {
			return err
		}
		switch rand.IntN(14) {
		case 0:
			return errors.New("boom")
		case 1:
			panic("boom")
		case 2: // goes on after what the database refused
			_ = tx.Create(&Entry{Call: c.id, Line: 0}).Error
			_ = write(tx)
		case 3:
			_ = tx.Exec("UPDATE nowhere SET x = 1").Error
			_ = write(tx)
		case 4: // what was undone is not in the books
			n := c.written
			_ = tx.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errors.New("boom")) })
			c.written = n
		case 5:
			_ = tx.Transaction(write)
		case 6:
			_, _ = tx.Model(&Entry{}).Rows()
		case 7:
			go func() { _ = tx.WithContext(context.Background()).Create(&Entry{Call: -c.id}).Error }()
		case 8:
			return tx.Rollback().Error
		case 9: // goes on after any error
			for range 3 {
				time.Sleep(rand.N(10 * time.Millisecond))
				_ = write(tx)
			}
		}
		return nil
	}, gormlock.Grouped(how.group()), gormlock.WithWait(how.wait()))
}

// disturb ends and interrupts connections at the server, and takes locks away, until done.
func disturb(t *testing.T, db *gorm.DB, h *hooked, pause time.Duration, done chan struct{}) {
	some := map[string]string{
		"mysql":    "SELECT id FROM " + processlist(t, db) + " WHERE db = DATABASE() AND id <> CONNECTION_ID() ORDER BY RAND() LIMIT 1",
		"postgres": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1",
	}
	ways := map[string][]string{
		"mysql":    {"KILL CONNECTION %d", "KILL QUERY %d", "KILL QUERY %d"},
		"postgres": {"SELECT pg_terminate_backend(%d)", "SELECT pg_cancel_backend(%d)", "SELECT pg_cancel_backend(%d)"},
	}[db.Name()]
	for {
		select {
		case <-done:
			return
		case <-time.After(rand.N(pause)):
		}
		if rand.IntN(8) == 0 {
			h.mu.Lock()
			var owner string
			if len(h.owners) > 0 {
				owner = h.owners[len(h.owners)-1]
			}
			h.mu.Unlock()
			for _, key := range []string{"onelane:{k}", "onelane:{j}"} {
				_, _ = h.Sealer.Release(context.Background(), core.Grant{Key: key, Owner: owner})
			}
		}
		if len(ways) == 0 {
			continue
		}
		var id int
		if db.Raw(some[db.Name()]).Row().Scan(&id) == nil {
			_ = db.Exec(fmt.Sprintf(ways[rand.IntN(len(ways))], id)).Error
		}
	}
}

// audit compares the outcomes that callers got with the entries.
func audit(t *testing.T, db *gorm.DB, calls []*call) {
	t.Helper()
	var entries []Entry
	ok(t, "Find", db.Find(&entries).Error)
	lines := make(map[int]int)
	for _, e := range entries {
		lines[e.Call]++
	}
	told := make(map[string]int)
	for _, c := range calls {
		n, verdict := lines[c.id], "failure"
		switch {
		case c.err == nil:
			verdict = "success"
		case errors.Is(c.err, gormlock.ErrCommitUnknown):
			verdict = "unknown"
		}
		told[verdict]++
		switch {
		case verdict == "success" && (n != c.written || c.ran != 1),
			verdict == "failure" && n != 0,
			verdict == "unknown" && n != 0 && n != c.written,
			c.ran > 1, c.ran == 0 && n > 0:
			t.Errorf("call %d ran %d times, wrote %d lines, of which %d are there, and was told %v", c.id, c.ran, c.written, n, c.err)
		}
		if c.ran == 1 && lines[-c.id] > n {
			t.Errorf("call %d: what it left behind is there, and it is not: %v", c.id, c.err)
		}
	}
	t.Logf("told: %v", told)
	if told["success"] == 0 || told["failure"] == 0 {
		t.Errorf("told: %v", told)
	}
	var written int64
	for call, n := range lines {
		if call > 0 && n > 0 {
			written++
		}
	}
	wantLeft(t, db, 42, 100000-written)
	wantLeft(t, db, 43, 100000-written)
}
