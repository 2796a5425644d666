package zkbackend

import (
	"sync"
	"time"
)

const maxSightings = 1 << 14

// sightings remember since when nodes have been as they are.
type sightings struct {
	mu    sync.Mutex
	nodes map[string]sighting
}

type sighting struct {
	zxid  int64
	since time.Time
}

// see notes that a node, last changed by zxid, was there before now. It returns since when this
// process knows that it is so. If there are too many nodes, it forgets some: their leases seem to
// begin anew.
func (s *sightings) see(path string, zxid int64, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.nodes[path]
	switch {
	case known && old.zxid == zxid:
		return old.since
	case known && old.zxid > zxid: // an old answer
		return now
	case !known && len(s.nodes) >= maxSightings:
		for other := range s.nodes {
			delete(s.nodes, other)
			break
		}
	}
	s.nodes[path] = sighting{zxid, now}
	return now
}

// known returns since when this process knows that a node is as zxid left it, or now.
func (s *sightings) known(path string, zxid int64, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, known := s.nodes[path]; known && old.zxid == zxid {
		return old.since
	}
	return now
}

func (s *sightings) forget(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, path)
}
