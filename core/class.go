package core

import (
	"sync"
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

	mu    sync.Mutex
	known map[string]*class
}

func newClasses(of func(string) string, panicked func(string, any)) *classes {
	c := &classes{of: of, panicked: panicked, known: make(map[string]*class)}
	c.add(otherClass)
	return c
}

func (c *classes) find(key string) *class {
	if c.of == nil {
		return unclassed
	}
	name := c.name(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[name] == nil {
		if len(c.known) > maxClasses {
			name = otherClass
		} else {
			c.add(name)
		}
	}
	return c.known[name]
}

// add makes a class. c.mu is held.
func (c *classes) add(name string) {
	c.known[name] = newClass(attribute.String("onelane.class", name))
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
