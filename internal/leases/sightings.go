package leases

import (
	"sync"
	"time"
)

const (
	// sightingsKept is how many sightings a generation has.
	sightingsKept = 1 << 14
	// overtaken is how late an answer may come after the answer to a later question. It is far more
	// than the time-out of a call.
	overtaken = time.Minute
)

// Sightings remember since when this process has seen keys unchanged. From that, a backend on a
// server without a clock knows that a lease has ended. It compares no clocks.
//
// The last 16,384 keys are remembered at least, and twice as many at most. If a key was forgotten,
// its lease seems to begin anew. The zero value is ready for use. Methods are safe for concurrent
// use.
type Sightings struct {
	mu         sync.Mutex
	young, old map[string]sighting
}

type sighting struct {
	revision int64
	since    time.Time
	last     time.Time // of the last sighting
	undated  bool      // it is not known how old it is
}

// See notes that a key has a revision now. It returns the time since which the key is known to have
// that revision. first reports whether the age of the revision is not known yet.
//
// An older revision than the last one is an answer that came late, and is not noted. See reports
// late then, and the caller should ask once more. But if the last sighting is a minute old or
// older, the servers were set back to a backup.
func (s *Sightings) See(key string, revision int64, now time.Time) (since time.Time, first, late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, known := s.find(key)
	if known && seen.revision > revision && now.Sub(seen.last) < overtaken {
		return now, false, true
	}
	if !known || seen.revision != revision {
		seen, first = sighting{revision: revision, since: now}, true
	}
	seen.last = now
	s.put(key, seen)
	return seen.since, first || seen.undated, false
}

// Known returns the time since which a key is known to have a revision, or now if it is not known.
// It remembers nothing.
func (s *Sightings) Known(key string, revision int64, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen, known := s.find(key); known && seen.revision == revision {
		return seen.since
	}
	return now
}

// Backdate notes that a key has had a revision since a time. It returns the time since which the
// key is known to have it, which may be earlier.
func (s *Sightings) Backdate(key string, revision int64, since time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, known := s.find(key)
	if known && seen.revision == revision && seen.since.Before(since) {
		since = seen.since
	}
	if !known || seen.revision == revision {
		if !known {
			seen.last = since
		}
		s.put(key, sighting{revision: revision, since: since, last: seen.last})
	}
	return since
}

// Undated notes that the age of a key's revision could not be found out. Until Backdate notes it,
// See reports first for this revision.
func (s *Sightings) Undated(key string, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen, known := s.find(key); known && seen.revision == revision {
		seen.undated = true
		s.put(key, seen)
	}
}

// Forget forgets a key that its holder has released. Do not call it because a key was found to be
// free: an older answer may still be on its way. The lease would seem to begin anew.
func (s *Sightings) Forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.young, key)
	delete(s.old, key)
}

// find returns a key's sighting. The caller holds s.mu.
func (s *Sightings) find(key string) (seen sighting, known bool) {
	if seen, known = s.young[key]; !known {
		seen, known = s.old[key]
	}
	return seen, known
}

// put keeps a sighting in the young generation. The caller holds s.mu.
func (s *Sightings) put(key string, seen sighting) {
	if _, young := s.young[key]; !young && (s.young == nil || len(s.young) >= sightingsKept) {
		s.old, s.young = s.young, make(map[string]sighting)
	}
	s.young[key] = seen
}
