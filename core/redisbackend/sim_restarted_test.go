package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
)

// A node that has restarted counts as excluded only for as long as it abstains. So it is also for a
// process that only asks for a key of another process, as the standbys of a leader do.
func TestHealth_RestartedNodeIsNotExcludedForEver(t *testing.T) {
	t.Parallel()
	if err := stage(t, 3, simRules{}, func(s *simStage) error {
		h := s.as("A").nodes[0].health
		s.empty(0)
		time.Sleep(10 * time.Millisecond)
		g := s.must("A")
		time.Sleep(simTTL / 2) // all nodes have answered
		if reason := h.excluded(); reason != reasonRestarted {
			return fmt.Errorf("a node that abstains has no vote for the reason %q", reason)
		}
		if err := s.release("A", g); err != nil {
			return err
		}
		time.Sleep(5 * simTTL) // it abstains no more
		s.must("B")
		if _, err := s.acquire("A"); !errors.Is(err, core.ErrTaken) {
			return fmt.Errorf("A was told %v beside B", err)
		}
		// A node that abstained would be none of B's.
		if st, err := s.as("A").Inspect(context.Background(), simKey); err != nil || st.Status != core.Held {
			return fmt.Errorf("%v, %v", st.Status, err)
		}
		if reason := h.excluded(); reason != "" {
			return fmt.Errorf("a node that votes again counts as excluded, for the reason %q", reason)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A process that started before NTP had set its clock counts the nodes as excluded only until it sees
// that its clock is right. So it is also for a standby, which never gets a key of its own.
func TestHealth_ClockIsRightAgain(t *testing.T) {
	t.Parallel()
	if err := stage(t, 3, simRules{}, func(s *simStage) error {
		s.ahead("A", time.Minute)
		if _, err := s.acquire("A"); !errors.Is(err, core.ErrUnavailable) {
			return fmt.Errorf("A was told %v", err)
		}
		s.must("B")
		s.as("A").now = time.Now
		if _, err := s.acquire("A"); !errors.Is(err, core.ErrTaken) {
			return fmt.Errorf("A was told %v beside B", err)
		}
		for _, n := range s.as("A").nodes {
			n.skew.note(0) // by a Ping, as the readiness check does
			if reason := n.health.excluded(); reason != "" {
				return fmt.Errorf("a node counts as excluded, for the reason %q", reason)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
