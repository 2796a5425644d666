package claim

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"weak"

	"github.com/onelane/onelane/core"
)

// functions is the transport of claims that belong to a function and to no request.
const functions = "do"

// OfFunctions returns Claims for functions on l. A call may come with its own settings, so only the
// instruments are kept.
func OfFunctions(l *core.Locker, s Settings) *Claims {
	return newClaims(l, instrumentsOfFunctions(l), s)
}

// functionInstruments are *instruments by weak.Pointer[core.Locker]: a Locker that nobody uses any
// more is not kept.
var functionInstruments sync.Map

func instrumentsOfFunctions(l *core.Locker) *instruments {
	w := weak.Make(l)
	if made, ok := functionInstruments.Load(w); ok {
		return made.(*instruments)
	}
	i := newInstruments(l, functions)
	i.traces = func(ctx context.Context) bool {
		l := w.Value()
		return l != nil && l.Traces(ctx)
	}
	made, loaded := functionInstruments.LoadOrStore(w, i)
	if !loaded {
		runtime.AddCleanup(l, func(w weak.Pointer[core.Locker]) { functionInstruments.Delete(w) }, w)
	}
	return made.(*instruments)
}

// OfFunction reports whether the claim belongs to a function and to no request.
func (k *Claim) OfFunction() bool { return k.claims.instruments.transport == functions }

// Run returns the run of this claim.
func (k *Claim) Run() Run { return Run{Begun: k.began, Instance: instanceOf(k.lock.Owner())} }

// CarriesOn reports whether ctx carries a claim on a key of l.
func CarriesOn(ctx context.Context, l *core.Locker, key string) bool {
	k, _ := FromContext(ctx)
	for ; k != nil && (k.key != key || k.claims.locker != l); k = k.outer {
	}
	return k != nil
}

// Stoned reports whether an error of Complete means that a tombstone took the record's place.
func Stoned(err error) bool { return errors.Is(err, errTombstone) }
