package zkbackend

import (
	"sync"
	"time"
)

// maxSightings is how many nodes are remembered besides those that waiters wait for.
const maxSightings = 1 << 14

// sightings remember since when nodes have been as they are.
type sightings struct {
	mu     sync.Mutex
	waited map[string]waited
	others map[string]sighting
	limit  int // of others
}

type sighting struct {
	zxid  int64 // 0 if the node was not seen
	since time.Time
}

// waited is a node that waiters of this process wait for.
type waited struct {
	sighting
	waiters int
}

func newSightings() *sightings {
	return &sightings{
		waited: make(map[string]waited), others: make(map[string]sighting), limit: maxSightings,
	}
}

// see notes that a node, last changed by zxid, was there before now. It returns since when this
// process knows that it is so. If there are too many nodes, it forgets one that nobody waits for:
// the lease of that one seems to begin anew.
func (s *sightings) see(path string, zxid int64, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.get(path)
	switch {
	case old.zxid == zxid:
		return old.since
	case old.zxid > zxid: // an old answer
		return now
	}
	s.put(path, sighting{zxid, now})
	return now
}

// known returns since when this process knows that a node is as zxid left it, or now.
func (s *sightings) known(path string, zxid int64, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.get(path); old.zxid == zxid {
		return old.since
	}
	return now
}

func (s *sightings) forget(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w, is := s.waited[path]; is {
		s.waited[path] = waited{waiters: w.waiters}
	}
	delete(s.others, path)
}

// wait notes that a waiter waits for a node, until done.
func (s *sightings) wait(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, is := s.waited[path]
	if !is {
		w.sighting = s.others[path]
		delete(s.others, path)
	}
	w.waiters++
	s.waited[path] = w
}

func (s *sightings) done(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waited[path]
	if w.waiters--; w.waiters > 0 {
		s.waited[path] = w
		return
	}
	delete(s.waited, path)
	if w.zxid != 0 {
		s.put(path, w.sighting)
	}
}

func (s *sightings) get(path string) sighting {
	if w, is := s.waited[path]; is {
		return w.sighting
	}
	return s.others[path]
}

func (s *sightings) put(path string, seen sighting) {
	if w, is := s.waited[path]; is {
		s.waited[path] = waited{seen, w.waiters}
		return
	}
	if _, known := s.others[path]; !known && len(s.others) >= s.limit {
		for other := range s.others {
			delete(s.others, other)
			break
		}
	}
	s.others[path] = seen
}
