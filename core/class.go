package core

import (
	"maps"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	// maxClasses is how many classes a Locker tells apart. Further ones count as otherClass.
	maxClasses     = 64
	maxClassLength = 64
	otherClass     = "other"
)

// WithClass sets a function that maps a key to its class, for example stock:42 to "stock". The
// class is the label onelane.class of the metrics about acquisitions, holds, losses and waiters.
// Without it there is no such label.
//
// The function is called once for each Acquire and must be quick and safe for concurrent use. A
// Locker tells 64 classes apart. So a bad function cannot flood a store of metrics. Further classes
// count as "other". So do classes that are empty or longer than 64 bytes, and keys on which the
// function panics.
func WithClass(class func(key string) string) Option {
	return lockerOption(func(c *config) { c.class = class })
}

// class holds the attributes of one class of keys. They are made once, so that a measurement
// allocates nothing.
type class struct {
	outcomes, ends, reasons map[string]labels
	waiting                 []metric.AddOption
}

func newClass(attrs ...attribute.KeyValue) *class {
	return &class{
		outcomes: each("onelane.outcome", attrs, outcomeGranted, outcomeTaken, outcomeSealed, outcomeOrphaned, outcomeUnavailable,
			outcomeCancelled, outcomeClosed, outcomeFailed, outcomeRenewed, outcomeLost),
		ends:    each("onelane.end", attrs, endReleased, endSealed, endLost, endClosed),
		reasons: each("onelane.reason", attrs, reasonExpired, reasonMaxHold, reasonTTL, reasonLapsed, reasonGone),
		waiting: []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attrs...))},
	}
}

// unclassed is the class of all keys without WithClass.
var unclassed = newClass()

// classes finds the class of a key.
type classes struct {
	of       func(key string) string // nil without WithClass
	panicked func(key string, what any)

	known atomic.Pointer[map[string]*class] // replaced, never changed
	mu    sync.Mutex                        // held to replace known
}

func newClasses(of func(string) string, panicked func(string, any)) *classes {
	c := &classes{of: of, panicked: panicked}
	c.known.Store(&map[string]*class{otherClass: newClass(classLabel(otherClass))})
	return c
}

func classLabel(name string) attribute.KeyValue { return attribute.String("onelane.class", name) }

func (c *classes) find(key string) *class {
	if c.of == nil {
		return unclassed
	}
	name := c.name(key)
	known := *c.known.Load()
	if k := known[name]; k != nil {
		return k
	}
	if len(known) > maxClasses {
		return known[otherClass]
	}
	return c.add(name)
}

// name calls the user's function.
func (c *classes) name(key string) (name string) {
	defer func() {
		if what := recover(); what != nil {
			name = otherClass
			c.panicked(key, what)
		}
	}()
	name = c.of(key)
	if name == "" || len(name) > maxClassLength || !utf8.ValidString(name) {
		return otherClass
	}
	return name
}

func (c *classes) add(name string) *class {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := *c.known.Load()
	switch {
	case known[name] != nil:
		return known[name]
	case len(known) > maxClasses:
		return known[otherClass]
	}
	more := maps.Clone(known)
	more[name] = newClass(classLabel(name))
	c.known.Store(&more)
	return more[name]
}
