package grpclock_test

import (
	"context"
	"slices"
	"testing"
)

func TestReplay_OriginalRequest(t *testing.T) {
	t.Parallel()
	s := once(t, func(context.Context, *request) (*order, error) { return &order{Run: 1}, nil })
	original := func(a answer) []string { return a.trailer.Get("idempotency-original-request") }
	if first := s.create("k", &request{}, "x-request-id", "req-1"); first.err != nil || len(original(first)) > 0 {
		t.Fatalf("got %v, %q", first.err, original(first))
	}
	again := s.create("k", &request{}, "x-request-id", "req-2")
	if again.want(t, 1, true); !slices.Equal(original(again), []string{"req-1"}) {
		t.Errorf("original %q", original(again))
	}
}
