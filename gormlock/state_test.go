package gormlock

import "testing"

// TestAdvance has each state and each event.
func TestAdvance(t *testing.T) {
	const stays = -1
	events := []event{eventLocked, eventBegun, eventCommitted, eventRolledBack, eventGivenUp, eventUnknown}
	for s, want := range map[state][6]state{
		stateIdle:       {stateLocked, statePlain, stateCommitted, stateRolledBack, stateFailed, stays},
		stateLocked:     {stays, stateGuarded, stateCommitted, stateRolledBack, stateFailed, stays},
		statePlain:      {stays, stays, stateCommitted, stateRolledBack, stateFailed, stays},
		stateGuarded:    {stays, stays, stateCommitted, stateRolledBack, stateFailed, stateUnknown},
		stateCommitted:  {stays, stays, stays, stays, stays, stays},
		stateRolledBack: {stays, stays, stays, stays, stays, stays},
		stateFailed:     {stays, stays, stays, stays, stays, stays},
		stateUnknown:    {stays, stays, stays, stays, stays, stays},
	} {
		for i, e := range events {
			next := want[i]
			if next == stays {
				next = s
			}
			if got := advance(s, e); got != next {
				t.Errorf("state %d, event %d: %d, want %d", s, e, got, next)
			}
		}
	}
}
