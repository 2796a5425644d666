package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// observe makes the instruments of a backend. They are read when metrics are collected, so that
// they cost a call nothing. nodes returns the nodes that the backend has by then. end must be
// called once.
func observe(m metric.Meter, nodes func() []*node) (end func() error, err error) {
	var errs [6]error
	// They are sums, because a process may have several backends on one node. Of a gauge only the
	// backend that was made last would count.
	counter := func(i int, name, unit, description string) (g metric.Int64ObservableUpDownCounter) {
		g, errs[i] = m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		return g
	}
	down := counter(0, "onelane.subscriptions.down", "{subscription}", "Backends of this process whose pub/sub connection to a Redis is down while callers wait for it, or was refused.")
	cleanUps := counter(1, "onelane.cleanups.waiting", "{cleanup}", "Keys of failed calls that are to be released.")
	stuck := counter(2, "onelane.calls.stuck", "{call}", "Calls that were given up and whose pool has not returned.")
	excluded := counter(3, "onelane.nodes.excluded", "{node}", "Backends of this process for which a node of a quorum has no vote now, by reason.")
	unanswered, err := m.Int64ObservableCounter("onelane.calls.unanswered", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that had no answer in time or could not connect."))
	errs[4] = err
	skew, err := m.Float64ObservableGauge("onelane.node.clock.skew", metric.WithUnit("s"),
		metric.WithDescription("How far this process's clock is ahead of the node's, as last seen."))
	errs[5] = err
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("redisbackend: create metrics: %w", err)
	}
	r, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, n := range nodes() {
			address := attribute.String("onelane.node", n.conn.Address())
			on := metric.WithAttributes(address)
			if n.wakes != nil {
				o.ObserveInt64(down, count(n.wakes.down()), on)
			}
			o.ObserveInt64(cleanUps, int64(n.cleaning.Waiting()), on)
			o.ObserveInt64(unanswered, n.unanswered.Load(), on)
			if n.stuck != nil {
				o.ObserveInt64(stuck, n.stuck.Load(), on)
			}
			if n.skew.known.Load() {
				o.ObserveFloat64(skew, time.Duration(n.skew.ahead.Load()).Seconds(), on)
			}
			if n.health == nil {
				continue
			}
			now := n.health.excluded()
			for _, reason := range []string{reasonTimeouts, reasonRestarted, reasonClock} {
				o.ObserveInt64(excluded, count(now == reason), metric.WithAttributes(address, attribute.String("onelane.reason", reason)))
			}
		}
		return nil
	}, down, cleanUps, stuck, excluded, unanswered, skew)
	if err != nil {
		return nil, fmt.Errorf("redisbackend: observe metrics: %w", err)
	}
	return r.Unregister, nil
}

func count(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
