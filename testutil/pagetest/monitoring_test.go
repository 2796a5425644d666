package pagetest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/glebarez/sqlite"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

const monitoring = "../../examples/seckill/monitoring/"

// Every panel of the dashboard and every alert asks for metrics that a service really has.
func TestMonitoring_AsksForWhatThereIs(t *testing.T) {
	get := loaded(t, load(t, emitted(t)))
	ask := func(t *testing.T, query string) {
		t.Helper()
		if result := get(t, query, 2*time.Minute); !said(result) {
			t.Errorf("%s has no answer: %v", query, result)
		}
	}
	for title, queries := range panels(t) {
		t.Run("panel "+title, func(t *testing.T) {
			for _, query := range queries {
				ask(t, query)
			}
		})
	}
	for name, rule := range alerts(t) {
		t.Run("alert "+name, func(t *testing.T) {
			p := parser.NewParser(parser.Options{})
			expr, err := p.ParseExpr(rule)
			if err != nil {
				t.Fatal(err)
			}
			comparison, ok := expr.(*parser.BinaryExpr)
			if !ok || !comparison.Op.IsComparisonOperator() {
				t.Fatalf("%s compares nothing", rule)
			}
			ask(t, comparison.LHS.String())
		})
	}
}

// loaded returns a function that runs a query on the data, at a time after they begin.
func loaded(t *testing.T, data string) func(t *testing.T, query string, at time.Duration) promql.Vector {
	t.Helper()
	storage := promqltest.LoadedStorage(t, data)
	t.Cleanup(func() { _ = storage.Close() })
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	return func(t *testing.T, query string, at time.Duration) promql.Vector {
		t.Helper()
		q, err := engine.NewInstantQuery(t.Context(), storage, nil, query, time.Unix(0, 0).Add(at))
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		defer q.Close()
		result, err := q.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return slices.Clone(result) // Close may reuse it
	}
}

// said is true where an answer has a number.
func said(v promql.Vector) bool {
	for _, sample := range v {
		if !math.IsNaN(sample.F) {
			return true
		}
	}
	return false
}

// panels are the queries of the dashboard, as Grafana sends them, by the panel's title.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(monitoring + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]string)
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			found[p.Title] = append(found[p.Title], strings.NewReplacer("$__rate_interval", "5m", "$job", ".*").Replace(target.Expr))
		}
	}
	if len(found) < 10 {
		t.Fatalf("only %d panels were found", len(found))
	}
	return found
}

// alerts are the expressions of the alert rules, by name.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	groups, errs := rulefmt.ParseFile(monitoring+"alerts.yml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	found := make(map[string]string)
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			found[rule.Alert] = rule.Expr
		}
	}
	return found
}

// load makes test data of a scrape: every series was 0 at first and is now what was scraped.
func load(t *testing.T, scrape string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("load 30s\n")
	for line := range strings.Lines(scrape) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		var number float64
		if _, err := fmt.Sscan(value, &number); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		fmt.Fprintf(&b, "  %s,job=\"shop\"} 0 %v %v %v %v\n", series, number, number, number, number)
	}
	return b.String()
}

// emitted is what a service's /metrics say after everything has happened to it that the metrics tell of.
func emitted(t *testing.T) string {
	t.Helper()
	registry := prom.NewRegistry()
	exporter, err := prometheus.New(prometheus.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	provider := metric.NewMeterProvider(metric.WithReader(exporter))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	locker := func(b core.Opener, opts ...core.Option) *core.Locker {
		l, err := core.New(b, append(opts, core.WithTelemetry(provider, nil))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	// until repeats what a slow machine can prevent, until a metric tells of it.
	until := func(metric string, do func()) {
		t.Helper()
		for began := time.Now(); value(t, registry, metric) == 0; {
			if time.Since(began) > time.Minute {
				t.Fatalf("nothing was counted by %s", metric)
			}
			do()
		}
	}
	locks(t, locker(backendtest.Memory()), locker(backendtest.Memory(), core.WithTTL(900*time.Millisecond)), until)
	requests(t, locker(backendtest.Memory()), "/small", "/small", "/"+strings.Repeat("l", 20))
	requests(t, locker(redisbackend.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}))), "/down")
	unknownCommit(t, locker(backendtest.Memory()))
	sales(t, provider, until)
	jobs(t, locker(backendtest.Memory()), until)
	hungNode(t, func(b core.Opener) *core.Locker { return locker(b) }, until)

	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatal(answer.Body)
	}
	return answer.Body.String()
}

// value adds up the samples of a metric. Of a histogram it is the number of observations.
func value(t *testing.T, registry prom.Gatherer, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// locks has one handed over, refused and sealed, and of the short ones one renewed and one lost.
func locks(t *testing.T, l, short *core.Locker, until func(string, func())) {
	t.Helper()
	ctx := t.Context()
	acquire := func(l *core.Locker, key string, opts ...core.AcquireOption) *core.Lock {
		k, err := l.Acquire(ctx, key, opts...)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := acquire(l, "a")
	if _, err := l.TryAcquire(ctx, "a"); err == nil {
		t.Fatal("the key was free")
	}
	until("onelane_hand_overs_total", func() {
		second := make(chan *core.Lock)
		go func() { second <- acquire(l, "a") }()
		until("onelane_waiters", func() { time.Sleep(time.Millisecond) })
		_ = first.Release(ctx)
		first = <-second
	})
	if err := first.Seal(ctx, []byte("sold out"), time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := l.Acquire(ctx, "a"); err == nil {
		t.Error("a sealed key was acquired")
	}
	until("onelane_renewal_duration_seconds", func() {
		k := acquire(short, "b")
		time.Sleep(400 * time.Millisecond) // renewed after a third of its TTL
		_ = k.Release(ctx)
	})
	<-acquire(short, "b", core.WithMaxHold(0)).Context().Done()
}

// requests are sent to a service that answers with the length of the path; their keys are their paths. Eight bytes are
// kept, and where there is no Redis they run all the same.
func requests(t *testing.T, l *core.Locker, paths ...string) {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(ginlock.ByHeader("Idempotency-Key", idempotency.WithLocker(l), idempotency.MaxBody(8), idempotency.FailOpen()))
	r.POST("/:size", func(c *gin.Context) { c.String(http.StatusOK, strings.Repeat("x", len(c.Param("size")))) })
	server := httptest.NewServer(r)
	defer server.Close()
	for _, path := range paths {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Idempotency-Key", path[1:])
		answer, err := http.DefaultClient.Do(request)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatal(answer, err)
		}
		_ = answer.Body.Close()
	}
}

// unknownCommit has a COMMIT without an answer.
func unknownCommit(t *testing.T, l *core.Locker) {
	t.Helper()
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Use(gormlock.New(l)); err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	session := db.WithContext(t.Context())
	session.Statement.ConnPool = &deaf{pool}
	err = gormlock.Transaction(session, "commit", func(tx *gorm.DB) error { return tx.Exec("CREATE TABLE a (b)").Error })
	if !errors.Is(err, gormlock.ErrCommitUnknown) {
		t.Fatal(err)
	}
	tries := 0
	err = gormlock.Transaction(db.WithContext(t.Context()), "again", func(*gorm.DB) error {
		if tries++; tries == 1 {
			return optimistic.ErrStale
		}
		return nil
	}, gormlock.WithRetry(2))
	if err != nil {
		t.Fatal(err)
	}
}

// jobs has one whose first run takes longer than two of its intervals.
func jobs(t *testing.T, l *core.Locker, until func(string, func())) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		_ = core.Every(ctx, l, "report", 100*time.Millisecond, func(context.Context) error {
			time.Sleep(300 * time.Millisecond)
			return nil
		})
	})
	until("onelane_every_skipped_total", func() { time.Sleep(10 * time.Millisecond) })
	cancel()
	all.Wait()
}

type saleRow struct {
	ID        int64
	Remaining int64
}

type saleOrder struct {
	ID int64
	N  int64 `gorm:"check:n < 10"`
}

// sales has batches with an order that is refused, a row that is sold out, and a COMMIT without an answer.
func sales(t *testing.T, provider *metric.MeterProvider, until func(string, func())) {
	t.Helper()
	db, err := gorm.Open(sqlite.Open("file:"+t.TempDir()+"/sale.db?_pragma=busy_timeout(20000)"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	pool.SetMaxOpenConns(1)
	if err := errors.Join(db.AutoMigrate(&saleRow{}, &saleOrder{}), db.Create(&saleRow{ID: 1, Remaining: 1 << 40}).Error); err != nil {
		t.Fatal(err)
	}
	lost := db.WithContext(t.Context())
	lost.ConnPool, lost.Statement.ConnPool = &deaf{pool}, &deaf{pool}
	for _, db := range []*gorm.DB{db, lost} {
		sale, err := stock.NewSale[saleRow, saleOrder](db, "remaining", stock.Telemetry(provider, nil))
		if err != nil {
			t.Fatal(err)
		}
		sell := func(n, quantity int64) { _, _ = sale.Sell(t.Context(), 1, quantity, &saleOrder{N: n}) }
		if db == lost {
			until("onelane_stock_unknown_commits_total", func() { sell(1, 1) })
			continue
		}
		until("onelane_stock_splits_total", func() {
			var all sync.WaitGroup
			for i := range int64(16) {
				all.Go(func() { sell(i, 1) })
			}
			all.Wait()
		})
		until("onelane_stock_sold_out_total", func() { sell(1, 1<<41) })
	}
}

// deaf is a database whose answers to COMMIT are lost.
type deaf struct{ *sql.DB }

type deafTx struct{ *sql.Tx }

func (d *deaf) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := d.DB.BeginTx(ctx, opts)
	return &deafTx{tx}, err
}

func (d *deafTx) Commit() error {
	_ = d.Rollback()
	return errors.New("the connection is gone")
}

// hungNode lets one Redis of five hang until it is left out.
func hungNode(t *testing.T, locker func(core.Opener) *core.Locker, until func(string, func())) {
	t.Helper()
	cluster := testutil.Cluster(t, 5)
	b := redisbackend.New(cluster.Clients()...)
	b.NewInstallation = true
	l := locker(b)
	for { // all answer once
		err := l.Do(t.Context(), "k", func(context.Context) error { return nil })
		if err == nil {
			break
		}
		if !errors.Is(err, core.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	cluster[0].Stop()
	t.Cleanup(cluster[0].Cont)
	until("onelane_nodes_excluded", func() {
		err := l.Do(t.Context(), "k", func(context.Context) error { return nil })
		if err != nil && !errors.Is(err, core.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	})
}
