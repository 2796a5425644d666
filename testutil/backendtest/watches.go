package backendtest

import "time"

var watchCases = []suiteCase{
	{"Watch_Release", func(s *suite) {
		g := s.acquire(s.request(s.key(), long))
		s.watched(g.Key, func() { s.ok("Release", s.release(g.Grant)) })
	}},
	{"Watch_Stopped", (*suite).watchStopped},
}

var sealerWatchCases = []suiteCase{
	{"Watch_Seal", func(s *suite) {
		g := s.acquire(s.request(s.key(), long))
		s.watched(g.Key, func() { s.ok("Seal", s.seal(g.Grant, nil, long)) })
	}},
	{"Watch_Orphan", func(s *suite) {
		g := s.acquire(s.orphanRequest(s.key(), long, long))
		s.watched(g.Key, func() { s.ok("Orphan", s.leave(g.Grant)) })
	}},
	{"Watch_Unseal", func(s *suite) {
		g := s.acquire(s.request(s.key(), long))
		s.ok("Seal", s.seal(g.Grant, nil, long))
		s.watched(g.Key, func() { s.unseal(g.Key) })
	}},
	{"Watch_UnsealOrphan", func(s *suite) {
		g := s.orphan()
		s.watched(g.Key, func() { s.unseal(g.Key) })
	}},
}

// watched checks that change wakes two watchers. A backend whose waiters poll has nothing to check.
func (s *suite) watched(key string, change func()) {
	s.Helper()
	first, stopFirst := s.watch(key)
	defer stopFirst()
	second, stopSecond := s.watch(key)
	defer stopSecond()
	change()
	for _, changed := range []<-chan struct{}{first, second} {
		if changed == nil {
			continue
		}
		select {
		case <-changed: // if it is closed, the waiter looks for itself
		case <-time.After(patience):
			s.Fatalf("a watcher heard of no change within %v", patience)
		}
	}
}

// watch returns a subscription that has no signal yet.
func (s *suite) watch(key string) (changed <-chan struct{}, stop func()) {
	s.Helper()
	s.ok("Watch", s.try(func() (err error) { changed, stop, err = s.b.Watch(s.ctx, key); return err }))
	select {
	case <-changed:
	default:
	}
	return changed, stop
}

func (s *suite) watchStopped() {
	g := s.acquire(s.request(s.key(), long))
	_, stop := s.watch(g.Key)
	stop()
	s.ok("Release", s.release(g.Grant))
	s.free(g.Key)
	changed, stop := s.watch(g.Key)
	defer stop()
	if changed == nil {
		return
	}
	g = s.acquire(s.request(g.Key, long))
	w, err := s.releaseCounting(g.Grant)
	s.ok("Release", err)
	if w.Others < -1 {
		s.Errorf("Release says that %d others wait", w.Others)
	}
}
