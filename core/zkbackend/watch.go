package zkbackend

import (
	"context"
	"sync"

	"github.com/go-zookeeper/zk"
)

// watches are the paths that waiters of this process wait for, and those on which ZooKeeper's watch
// is still set: it cannot be taken back. It ends with the next change of the node, a renewal at the
// latest, and is not set again if nobody waits any more.
type watches struct {
	mu    sync.Mutex
	paths map[string]*watch
}

// watch is what is known of one path. All waiters of a path share one watch of ZooKeeper.
type watch struct {
	waiters map[chan struct{}]struct{}
	// set means that ZooKeeper will report a change, or is just asked to.
	set bool
	// holder had the key when the watch was set. It is empty if the key was not held.
	holder string
}

// Watch implements core.Backend.
func (b *backend) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	path, err := b.pathOf(key)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := b.begin(ctx)
	defer cancel()
	changed := make(chan struct{}, 1)
	b.watches.add(path, changed)
	stop := func() { b.watches.remove(path, changed) }
	if !b.watches.isSet(path) {
		if _, err := b.read(ctx, path); err != nil {
			stop()
			return nil, nil, unavailable(key, err)
		}
		select {
		case <-changed: // what the read itself said; the caller asks by itself
		default:
		}
	}
	return changed, stop, nil
}

// The library's goroutines call event, which must not block them.
func (b *backend) event(e zk.Event) {
	switch {
	case e.Type == zk.EventSession && e.State == zk.StateHasSession:
		b.watches.signalAll() // an event may have been missed
	case e.Type == zk.EventNodeDataChanged:
		if holder, waited := b.watches.fired(e.Path, false); waited {
			b.spawn(func() { b.lookAgain(e.Path, holder) })
		}
	case e.Path != "":
		b.watches.fired(e.Path, true)
	}
}

// lookAgain sets the watch of a changed node again. It signals the waiters unless the holder has
// only renewed its lease.
func (b *backend) lookAgain(path, holder string) {
	ctx, cancel := b.begin(b.open)
	defer cancel()
	n, err := b.read(ctx, path)
	if err != nil || n == nil || n.state != stateHeld || n.owner != holder {
		b.watches.signal(path)
	}
}

func (w *watches) add(path string, changed chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.paths[path]
	if p == nil {
		p = &watch{waiters: make(map[chan struct{}]struct{})}
		w.paths[path] = p
	}
	p.waiters[changed] = struct{}{}
}

func (w *watches) remove(path string, changed chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.paths[path]; p != nil {
		delete(p.waiters, changed)
		w.tidy(path, p)
	}
}

// tidy forgets a path that nobody waits for and ZooKeeper does not watch.
func (w *watches) tidy(path string, p *watch) {
	if len(p.waiters) == 0 && !p.set {
		delete(w.paths, path)
	}
}

// isSet reports whether ZooKeeper will tell waiters of this process about a change of path.
func (w *watches) isSet(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.paths[path]
	return p != nil && p.set && len(p.waiters) > 0
}

// set reports whether the read that follows should set ZooKeeper's watch.
func (w *watches) set(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.paths[path]
	if p == nil || p.set || len(p.waiters) == 0 {
		return false
	}
	p.set = true
	return true
}

// answered notes what a read found that should set the watch: n is nil if it is not set.
func (w *watches) answered(path string, n *node) {
	if n == nil {
		w.fired(path, true)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.paths[path]; p != nil {
		p.holder = ""
		if n.state == stateHeld {
			p.holder = n.owner
		}
	}
}

// fired notes that ZooKeeper's watch of a path is over. It returns who held the key when it was
// set, and whether somebody waits.
func (w *watches) fired(path string, signal bool) (holder string, waited bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.paths[path]
	if p == nil {
		return "", false
	}
	p.set = false
	if signal {
		p.signal()
	}
	w.tidy(path, p)
	return p.holder, len(p.waiters) > 0
}

func (w *watches) signal(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.paths[path]; p != nil {
		p.signal()
	}
}

func (w *watches) signalAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.paths {
		p.signal()
	}
}

func (p *watch) signal() {
	for changed := range p.waiters {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}
