package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/check"
)

func TestMain(m *testing.M) {
	if os.Getenv(instanceEnv) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	gin.SetMode(gin.ReleaseMode)
	gin.DefaultErrorWriter = io.Discard
	os.Exit(m.Run())
}

// The show, and with it three instances that are replaced while they sell: each has to end well.
func TestPlay(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"-customers", "40", "-kills", "2"}, &out, &errs)
	if code != 0 {
		t.Errorf("exit status %d: %s%s", code, &out, &errs)
	}
}

// Instances are killed in the middle of requests. Customers retry or give up, and the sweep settles what
// is left. Then each charge has its order, each unit is sold once or on sale, and no buyer has two orders.
func TestKill(t *testing.T) {
	kills := 20
	if check.Long {
		kills = 100
	}
	o, err := parse([]string{"-hold", "2s"}, io.Discard)
	check.OK(t, "parse", err)
	w, err := newWorld(t.Context(), o, io.Discard)
	defer func() { check.OK(t, "close", w.close()) }()
	check.OK(t, "newWorld", err)
	check.OK(t, "deliver", w.deliver(t.Context(), plenty))
	w.fleet.kill(kills)
	answers := w.rush(t.Context(), true, w.fleet.quiet)
	b, err := w.books(t.Context())
	check.OK(t, "books", err)
	t.Log(answers, w.fleet.killed, b)
	if len(b.wrong) > 0 {
		t.Error(b)
	}
	for _, moment := range moments {
		if w.fleet.killed[moment] < kills/8 {
			t.Errorf("%d of %d were killed when %s", w.fleet.killed[moment], kills, moment)
		}
	}
}

// newConfig is that of an instance with its own Redis and database.
func newConfig(t *testing.T, provider string) (config, *miniredis.Miniredis) {
	t.Helper()
	m := miniredis.RunT(t)
	c := config{
		name: "shop", addr: "127.0.0.1:0", redis: m.Addr(), db: "sqlite:" + t.TempDir() + "/shop.db", provider: provider,
		hold: time.Hour, lease: time.Minute, timeout: patience, sweep: time.Second,
	}
	check.OK(t, "prepare", prepare(opened(t, c), 10))
	return c, m
}

func opened(t *testing.T, c config) *gorm.DB {
	t.Helper()
	db, err := openDB(c.db)
	check.OK(t, "openDB", err)
	t.Cleanup(func() { closeDB(db) })
	return db
}

// startInstance runs an instance in this process. stop begins to stop it.
func startInstance(t *testing.T, c config) (w *world, stop func() (ended <-chan error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	addrs, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- serve(ctx, c, func(addr string) { addrs <- addr }) }()
	select {
	case addr := <-addrs:
		w = &world{url: "http://" + addr, crowd: crowd{states: make(map[string]string)}}
	case err := <-ended:
		t.Fatal(err)
	}
	return w, func() <-chan error { cancel(); return ended }
}

// stopped waits until an instance takes no new requests.
func stopped(t *testing.T, w *world) {
	t.Helper()
	check.Eventually(t, "no new requests", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

// stoppingBank is a provider that waits before each charge.
func stoppingBank(t *testing.T) (url string, asked <-chan struct{}, goOn func()) {
	t.Helper()
	p, came, on := newProvider(), make(chan struct{}), make(chan struct{})
	p.reached = func(moment, _ string) bool {
		if moment == momentAsked {
			came <- struct{}{}
			<-on
		}
		return false
	}
	bank := httptest.NewServer(p)
	t.Cleanup(bank.Close)
	return bank.URL, came, func() { close(on) }
}

// An instance that stops finishes its requests, also one whose client has hung up.
func TestServe_Stop(t *testing.T) {
	bank, asked, goOn := stoppingBank(t)
	c, _ := newConfig(t, bank)
	w, stop := startInstance(t, c)
	status := make(chan int, 2)
	buy := func(ctx context.Context, buyer string) {
		got, _ := w.buy(ctx, buyer, "1", 1, 1)
		status <- got
	}
	impatient, hangUp := context.WithCancel(t.Context())
	go buy(impatient, "ben")
	<-asked
	hangUp()
	if got := <-status; got != 0 {
		t.Errorf("a client that hung up got %d", got)
	}
	go buy(t.Context(), "ann")
	<-asked
	ended := stop()
	stopped(t, w)
	goOn()
	if got := <-status; got != http.StatusCreated {
		t.Errorf("a request under way got %d, want 201", got)
	}
	check.OK(t, "serve", <-ended)
	var n int64
	check.OK(t, "Count", opened(t, c).Model(&Order{}).Where("state = ?", confirmed).Count(&n).Error)
	if n != 2 {
		t.Errorf("%d orders are confirmed, want 2", n)
	}
}

// Redis is away when an order is answered. An instance that stops waits until the answer is recorded.
func TestServe_StopRecords(t *testing.T) {
	bank, asked, goOn := stoppingBank(t)
	c, m := newConfig(t, bank)
	w, stop := startInstance(t, c)
	status := make(chan int)
	go func() {
		got, _ := w.buy(t.Context(), "ann", "1", 1, 1)
		status <- got
	}()
	<-asked
	m.SetError("LOADING")
	goOn()
	if got := <-status; got != http.StatusCreated {
		t.Errorf("without Redis the answer is %d, want 201", got)
	}
	ended := stop()
	stopped(t, w)
	m.SetError("")
	check.OK(t, "serve", <-ended)

	recorded := slices.ContainsFunc(m.Keys(), func(key string) bool {
		value, err := m.Get(key)
		return err == nil && strings.Contains(key, "claim:shop:ann") && strings.Contains(value, `"state":"confirmed"`)
	})
	if !recorded {
		t.Error("the answer is not recorded")
	}
}

// An instance without Redis is alive, and not ready. It stops all the same.
func TestServe_Health(t *testing.T) {
	c, m := newConfig(t, "http://127.0.0.1:1")
	w, stop := startInstance(t, c)
	get := func(path string) (int, string) {
		resp, err := http.Get(w.url + path)
		check.OK(t, path, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		check.OK(t, path, err)
		return resp.StatusCode, string(body)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, _ := get(path); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
	}
	check.Eventually(t, "the metrics of the sweep's lock", func() bool {
		_, metrics := get("/metrics")
		return strings.Contains(metrics, `onelane_acquire_duration`)
	})
	m.Close()
	if status, _ := get("/healthz"); status != http.StatusOK {
		t.Errorf("without Redis it is not alive: %d", status)
	}
	if status, _ := get("/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("without Redis it is ready: %d", status)
	}
	check.OK(t, "serve", <-stop())
}

func TestBadInput(t *testing.T) {
	for _, args := range []string{
		"-customers 0", "-kills -1", "-nonsense", "surplus", "-serve :0", "-provider http://x", "-db nonsense", "-redis x -db sqlite: -provider x -serve :0",
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%s: exit status %d, %q", args, code, errs.String())
		}
	}
}
