package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"gorm.io/gorm"
)

// world is what the show runs: the servers, the provider, the instances, and the shop's address.
type world struct {
	options
	database *gorm.DB
	provider *provider
	fleet    *fleet
	url      string
	units    int64 // that were delivered
	stops    []func() error
	crowd
}

// play runs the show. It returns false if the books are wrong.
func play(ctx context.Context, o options, stdout, stderr io.Writer) (ok bool, err error) {
	if !o.verbose {
		stderr = io.Discard
	}
	w, err := newWorld(ctx, o, stderr)
	if err == nil {
		ok, err = w.play(ctx, stdout)
	}
	return ok, errors.Join(err, w.close())
}

func (w *world) play(ctx context.Context, out io.Writer) (bool, error) {
	fmt.Fprintf(out, "1. %d customers click twice, while each instance is replaced\n", w.customers)
	replaced := make(chan error, 1)
	go func() { replaced <- w.fleet.replace(ctx) }()
	n := 0
	answers := w.rush(ctx, false, func() bool { n++; return n > w.customers })
	if err := <-replaced; err != nil {
		return false, err
	}
	fmt.Fprintln(out, "   answers:", answers)

	fmt.Fprintf(out, "2. %d instances are killed in the middle of requests, and every second customer gives up at once\n", w.kills)
	if err := w.deliver(ctx, plenty); err != nil {
		return false, err
	}
	w.fleet.kill(w.kills)
	fmt.Fprintln(out, "   answers:", w.rush(ctx, true, w.fleet.quiet))
	for _, moment := range append(moments, momentClosed) {
		fmt.Fprintf(out, "   killed when %s: %d\n", moment, w.fleet.killed[moment])
	}

	fmt.Fprintln(out, "3. The provider is away, and comes back")
	w.provider.down.Store(true)
	during, _ := w.buy(ctx, "ann", "key-of-ann", 1, 1)
	w.provider.down.Store(false)
	after, _ := w.buy(ctx, "ann", "key-of-ann", 1, patient)
	fmt.Fprintf(out, "   the answer while it is away: %d, the answer to the retry: %d\n", during, after)

	b, err := w.books(ctx)
	if err != nil {
		return false, err
	}
	fmt.Fprintln(out, b)
	if w.stay {
		fmt.Fprintf(out, "Open for orders until Ctrl-C. Metrics of an instance: http://%s/metrics\n", w.fleet.instances[0].addr)
		fmt.Fprintf(out, "curl -i %s/orders -H 'Authorization: Bearer ann' -H 'Idempotency-Key: \"1\"' -H 'Content-Type: application/json' -d '{\"units\":1}'\n", w.url)
		<-ctx.Done()
	}
	retried := after == http.StatusCreated || after == http.StatusGone // 410 if it took too long to come back
	return len(b.wrong) == 0 && during == http.StatusServiceUnavailable && retried, nil
}

// newWorld starts what was not named, makes the tables, and starts the instances.
func newWorld(ctx context.Context, o options, stderr io.Writer) (*world, error) {
	w := &world{options: o, provider: newProvider(), units: int64(o.customers), crowd: crowd{states: make(map[string]string)}}
	if w.redis == "" {
		m := miniredis.NewMiniRedis()
		if err := m.Start(); err != nil {
			return w, fmt.Errorf("cannot start the embedded Redis: %w", err)
		}
		expire(m)
		w.redis = m.Addr()
		w.stops = append(w.stops, func() error { m.Close(); return nil })
	}
	if w.db == "" {
		dir, err := os.MkdirTemp("", "shop")
		if err != nil {
			return w, fmt.Errorf("cannot make a folder for SQLite: %w", err)
		}
		w.db = "sqlite:" + filepath.Join(dir, "shop.db")
		w.stops = append(w.stops, func() error { return os.RemoveAll(dir) })
	}
	db, err := openDB(w.db)
	if err != nil {
		return w, err
	}
	w.database = db.WithContext(ctx)
	w.stops = append(w.stops, func() error { closeDB(db); return nil })
	if err := prepare(db, w.units); err != nil {
		return w, err
	}
	bank := httptest.NewServer(w.provider)
	w.stops = append(w.stops, func() error { bank.Close(); return nil })
	w.config.provider = bank.URL
	if w.fleet, err = newFleet(w.config, stderr); err != nil {
		return w, err
	}
	w.provider.reached = w.fleet.reached
	front := httptest.NewServer(w.fleet.balancer())
	w.url = front.URL
	w.stops = append(w.stops, w.fleet.close, func() error { front.Close(); return nil })
	return w, nil
}

// prepare makes the tables of a new sale.
func prepare(db *gorm.DB, units int64) error {
	err := db.AutoMigrate(&Stock{}, &Order{})
	if err == nil {
		all := db.Session(&gorm.Session{AllowGlobalUpdate: true})
		err = errors.Join(all.Delete(&Stock{}).Error, all.Delete(&Order{}).Error, db.Create(&Stock{sku, units}).Error)
	}
	if err != nil {
		return fmt.Errorf("cannot make the tables: %w", err)
	}
	return nil
}

// plenty is what is delivered so that nothing is sold out while instances are killed.
const plenty = 1_000_000

// deliver puts units on sale. An ordinary UPDATE does it.
func (w *world) deliver(ctx context.Context, units int64) error {
	w.units += units
	return w.database.WithContext(ctx).Model(&Stock{}).Where("sku = ?", sku).
		Update("remaining", gorm.Expr("remaining + ?", units)).Error
}

func (w *world) close() (err error) {
	for _, stop := range slices.Backward(w.stops) {
		err = errors.Join(err, stop())
	}
	return err
}

// expire makes keys of the embedded Redis expire: the clock of that server stands still by itself.
func expire(m *miniredis.Miniredis) {
	var mu sync.Mutex
	last := time.Now()
	m.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
		if !m.TryLock() {
			return false // a script runs, and this may be one of its commands
		}
		m.Unlock()
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(last) >= 20*time.Millisecond {
			m.FastForward(now.Sub(last))
			last = now
		}
		return false
	})
}
