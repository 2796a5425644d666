package leases_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at returns a time some seconds after the start.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func TestDeadline_LeavesRoomForClockDrift(t *testing.T) {
	if d := leases.Deadline(start, 10*time.Second).Sub(start); d != 9898*time.Millisecond {
		t.Errorf("a lease of 10 s is valid for %v, want 9.898s", d)
	}
}

func TestTaken_NamesHolderAndTag(t *testing.T) {
	err := leases.Taken("k", "shop-1/01a027c7a400b8e76a1c0f93d5e2b471#till 3", time.Second)
	if err.Key != "k" || err.Holder != "shop-1/01a027c7a400b8e76a1c0f93d5e2b471" || err.Tag != "till 3" || err.RetryAfter != time.Second {
		t.Errorf("%+v", err)
	}
	if !errors.Is(err, core.ErrTaken) {
		t.Errorf("%v does not match ErrTaken", err)
	}
}

func TestLost_NamesTheHolder(t *testing.T) {
	for status, want := range map[core.Status]string{core.Held: "held by shop-1/01a027c7a400b8e76a1c0f93d5e2b471", core.Free: "is free"} {
		err := leases.Lost(status, "shop-1/01a027c7a400b8e76a1c0f93d5e2b471#till 3")
		if !errors.Is(err, core.ErrLost) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", status, err)
		}
	}
}

func see(t *testing.T, s *leases.Sightings, key string, revision int64, now, wantSince time.Time, wantFirst bool) {
	t.Helper()
	if since, first, _ := s.See(key, revision, now); !since.Equal(wantSince) || first != wantFirst {
		t.Errorf("See(%s, %d) = %v, %v; want %v, %v", key, revision, since, first, wantSince, wantFirst)
	}
}

func TestSightings_SinceTheFirstOfARevision(t *testing.T) {
	var s leases.Sightings
	see(t, &s, "k", 1, at(1), at(1), true)
	see(t, &s, "k", 1, at(2), at(1), false)
	see(t, &s, "k", 2, at(3), at(3), true)
	if since, first, late := s.See("k", 1, at(4)); !since.Equal(at(4)) || first || !late {
		t.Errorf("an older revision: %v, %v, %v", since, first, late)
	}
	see(t, &s, "k", 2, at(5), at(3), false)
	s.Forget("k")
	see(t, &s, "k", 2, at(6), at(6), true)
}

// Servers that were set back to a backup answer with older revisions, of leases that end, too.
func TestSightings_OlderRevisionAfterAMinute(t *testing.T) {
	var s leases.Sightings
	see(t, &s, "k", 7, at(1), at(1), true)
	see(t, &s, "k", 7, at(30), at(1), false)
	see(t, &s, "k", 3, at(89), at(89), false)
	see(t, &s, "k", 3, at(90), at(90), true)
	see(t, &s, "k", 3, at(100), at(90), false)
}

func TestSightings_Known_remembersNothing(t *testing.T) {
	var s leases.Sightings
	if since := s.Known("k", 1, at(1)); !since.Equal(at(1)) {
		t.Errorf("an unknown key is known since %v", since)
	}
	see(t, &s, "k", 1, at(2), at(2), true)
	if since := s.Known("k", 1, at(3)); !since.Equal(at(2)) {
		t.Errorf("the key is known since %v, want %v", since, at(2))
	}
	if since := s.Known("k", 2, at(3)); !since.Equal(at(3)) {
		t.Errorf("another revision is known since %v, want %v", since, at(3))
	}
}

func TestSightings_Backdate(t *testing.T) {
	var s leases.Sightings
	see(t, &s, "k", 5, at(10), at(10), true)
	for _, c := range []struct {
		revision          int64
		since, want, kept int
	}{
		{5, 4, 4, 4},
		{5, 7, 4, 4}, // it never becomes younger
		{3, 1, 1, 4}, // of an older revision
	} {
		if since := s.Backdate("k", c.revision, at(c.since)); !since.Equal(at(c.want)) {
			t.Errorf("Backdate(%d, %d) = %v, want %v", c.revision, c.since, since, at(c.want))
		}
		see(t, &s, "k", 5, at(11), at(c.kept), false)
	}
}

func TestSightings_UndatedIsFirstAgain(t *testing.T) {
	var s leases.Sightings
	see(t, &s, "k", 1, at(1), at(1), true)
	s.Undated("k", 1)
	see(t, &s, "k", 1, at(2), at(1), true)
	s.Backdate("k", 1, at(0))
	see(t, &s, "k", 1, at(3), at(0), false)
}

func TestSightings_ForgetsWhatWasSeenLongAgo(t *testing.T) {
	const kept = 1 << 14
	var s leases.Sightings
	for i := range kept {
		s.See(fmt.Sprint(i), 1, at(i))
	}
	for i := range kept { // also in turns
		see(t, &s, fmt.Sprint(i), 1, at(kept), at(i), false)
	}
	for i := range 2 * kept {
		s.See(fmt.Sprint("other", i), 1, at(kept))
	}
	see(t, &s, "0", 1, at(kept+1), at(kept+1), true)
}
