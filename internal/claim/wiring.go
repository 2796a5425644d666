package claim

import (
	"fmt"
	"reflect"

	"github.com/onelane/onelane/core"
)

// Wiring is what a middleware over HTTP shows of itself before a request comes.
type Wiring struct {
	// Name is how the program made the middleware, for example ByHeader("Idempotency-Key").
	Name string
	// Keyed means that it has a claim of each request. Two of them with the same Key ask for the same
	// claim.
	Keyed bool
	Key   WiringKey
	// Covers reports whether it protects requests of a method.
	Covers func(method string) bool
	// Params are the parameters of the path that its template names.
	Params []string
	// Seals means that it needs a Locker that keeps records.
	Seals  bool
	Locker func() *core.Locker
}

// WiringKey is where keys come from. Functions have their identities.
type WiringKey struct {
	Service, Source string
	Func, Principal uintptr
}

// Identity tells functions apart, or is 0 for nil. Closures of one literal share their code, so it
// is the address of the closure.
func Identity[F any](fn F) uintptr {
	return *(*uintptr)(reflect.ValueOf(&fn).UnsafePointer())
}

// CheckRoute returns why middlewares would refuse the requests of a route, from the outermost to
// the innermost. has reports whether a middleware knows a parameter of the path.
func CheckRoute(method string, chain []Wiring, has func(i int, param string) bool) (errs []error) {
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	made := make(map[WiringKey]string)
	for i, w := range chain {
		if !w.Covers(method) {
			continue
		}
		for _, param := range w.Params {
			if !has(i, param) {
				add("%s: the route has no parameter {param.%s}: name one of its own", w.Name, param)
			}
		}
		if l := w.Locker(); w.Seals && l != nil && !l.Seals() {
			add("%s: the Locker cannot keep records: %w", w.Name, core.ErrNoSeals)
		}
		if !w.Keyed {
			continue
		}
		if outer, twice := made[w.Key]; twice {
			add("%s and, inside of it, %s take the same key: keep one of them", outer, w.Name)
		}
		made[w.Key] = w.Name
	}
	return errs
}
