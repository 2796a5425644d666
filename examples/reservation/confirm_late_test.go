package main

import (
	"errors"
	"testing"
	"time"
)

// The provider calls twice, or has two events for one payment. The second call meets a process whose
// clock is a second behind. After errExpired the buyer was paid back.
func TestSale_PaidBackIsNotConfirmed(t *testing.T) {
	onSale(t, 5, func(t *testing.T, s *sale) {
		ok(t, "reserve", s.reserve(t.Context(), "ann", 42, 2))
		s.clock.Add(time.Minute.Milliseconds())
		behind := s.shop
		behind.now = func() time.Time { return s.shop.now().Add(-time.Second) }
		if err := s.confirm(t.Context(), "ann"); !errors.Is(err, errExpired) {
			t.Fatalf("confirm after its time: %v", err)
		}
		if err := behind.confirm(t.Context(), "ann"); !errors.Is(err, errExpired) {
			t.Errorf("an order that was paid back is confirmed: %v", err)
		}
		ok(t, "sweep", s.sweep(t.Context()))
		if left, sold := s.remaining(t), s.units(t, confirmed); left != 5 || sold != 0 {
			t.Errorf("%d units remain and %d are sold, want 5 and 0", left, sold)
		}
	})
}
