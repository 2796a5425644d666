package gormlock_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
	"github.com/onelane/onelane/testutil/backendtest"
)

// readMetrics returns what each series of gormlock counted.
func readMetrics(t *testing.T, reader sdkmetric.Reader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	ok(t, "Collect", reader.Collect(context.Background(), &all))
	read := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if !strings.HasPrefix(metric.Name, "onelane.gormlock.") {
				continue
			}
			if metric.Description == "" || metric.Unit == "" {
				t.Errorf("%s: unit %q, description %q", metric.Name, metric.Unit, metric.Description)
			}
			sum, _ := metric.Data.(metricdata.Sum[int64])
			for _, p := range sum.DataPoints {
				read[metric.Name] += p.Value
			}
		}
	}
	return read
}

// TestTelemetry_Metrics makes everything happen that is measured.
func TestTelemetry_Metrics(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		reader := sdkmetric.NewManualReader()
		meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		l := locker(t, backendtest.Memory(), core.WithTelemetry(meters, nil))
		ok(t, "Migrate", gormlock.Migrate(db))
		ok(t, "AutoMigrate", db.AutoMigrate(&Account{}))
		ok(t, "Use", db.Use(gormlock.New(l)))
		put(t, db, 42, 10)
		buy := func(tx *gorm.DB) error { return take(tx, 42) }
		ctx := t.Context()

		ok(t, "Fenced", gormlock.Transaction(db, "f", buy, gormlock.Fenced()))
		ok(t, "Exec", db.Exec("UPDATE onelane_fences SET token = token + 1000000").Error)
		want(t, "Fenced", gormlock.Transaction(db, "f", buy, gormlock.Fenced()), gormlock.ErrFenced)

		account := Account{Name: "a"}
		ok(t, "Create", db.Create(&account).Error)
		theirs := account
		ok(t, "Update", db.Model(&account).Update("name", "b").Error)
		want(t, "Update", db.Model(&theirs).Update("name", "c").Error, optimistic.ErrStale)
		want(t, "Save", db.Save([]*Account{&theirs}).Error, optimistic.ErrStale)

		runs := 0
		_, err := gormlock.Once(ctx, db, "once", func(*gorm.DB) (int, error) {
			if runs++; runs < 3 {
				return 0, &pgconn.PgError{Code: "40001"}
			}
			return runs, nil
		})
		ok(t, "Once", err)

		unknown := errors.New("the connection is gone")
		session := db.WithContext(ctx)
		session.Statement.ConnPool = &faulty{DB: pool(t, db), answer: unknown}
		want(t, "unknown", gormlock.Transaction(session, "u", buy), gormlock.ErrCommitUnknown)

		got := readMetrics(t, reader)
		expected := map[string]int64{
			"onelane.gormlock.unknown_commits": 1,
			"onelane.gormlock.fence_refusals":  1,
			"onelane.gormlock.stale_writes":    2,
			"onelane.gormlock.retries":         2,
		}
		if !maps.Equal(got, expected) {
			t.Errorf("got  %v\nwant %v", got, expected)
		}
	})
}
