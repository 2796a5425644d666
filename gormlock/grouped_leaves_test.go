package gormlock

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// standsAt waits until a goroutine waits for a mutex in a function.
func standsAt(t *testing.T, function string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		all := make([]byte, 1<<20)
		for _, g := range strings.Split(string(all[:runtime.Stack(all, true)]), "\n\n") {
			if strings.Contains(g, "[sync.Mutex.Lock") && strings.Contains(g, function+"(") {
				return
			}
		}
	}
	t.Fatalf("no goroutine waits in %s", function)
}

// X is the last who waits for a group, and leaves at the moment at which the group has begun. Y comes at
// that moment, and has a minute. X must not harm Y.
func TestGrouped_ComesWhenTheLastLeaves(t *testing.T) {
	db, err := gorm.Open(sqlite.Open("file:leaves?mode=memory&cache=shared"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	conns, _ := db.DB()
	defer conns.Close()
	l, err := core.New(backendtest.Memory())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := db.Use(New(l)); err != nil {
		t.Fatal(err)
	}
	p, _ := registered(db)
	waiting := func(n int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); Waiting(db) != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d wait, want %d", Waiting(db), n)
			}
		}
	}
	k, err := l.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	x, y := make(chan error, 1), make(chan error, 1)
	fn := func(tx *gorm.DB) error { return tx.Exec("SELECT 1").Error }
	go func() { x <- Transaction(db.WithContext(ctx), "k", fn, Grouped(8), WithWait(time.Minute)) }()
	waiting(1)
	p.queues.mu.Lock()
	var g *group
	for _, q := range p.queues.all {
		g = q.next
	}
	p.queues.mu.Unlock()

	g.mu.Lock()
	if err := k.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	standsAt(t, "(*group).mark") // the group has the lock, and begins
	p.queues.mu.Lock()
	leave()
	standsAt(t, "(*groupQueues).leave") // X
	go func() { y <- Transaction(db, "k", fn, Grouped(8), WithWait(time.Minute)) }()
	standsAt(t, "(*groupQueues).enter") // Y
	g.mu.Unlock()
	standsAt(t, "(*group).admit") // the group has begun, and is sound. It is the third in line
	p.queues.mu.Unlock()
	t.Logf("X: %v", <-x)
	if err := <-y; err != nil {
		t.Errorf("Y: %v", err)
	}
}
