package gormlock

import (
	"context"
	"database/sql"
	"slices"
	"time"
)

// defaultWait is how long a guard waits for its keys.
const defaultWait = 5 * time.Second

// guard is what one Guard asks for.
type guard struct {
	key    string
	wait   time.Duration // 0: not given
	fenced bool
	err    error

	// Of a Transaction or a Once alone.
	more        []string // keys
	tx          *sql.TxOptions
	retries     int
	fingerprint []byte
}

// demand is what all guards of a statement or a transaction ask for, with keys that are ready to be
// locked.
type demand struct {
	keys   []string
	wait   time.Duration
	fenced bool
}

func (d demand) and(keys []string, wait time.Duration, fenced bool) demand {
	d.keys, d.wait, d.fenced = append(slices.Clip(d.keys), keys...), max(d.wait, wait), d.fenced || fenced
	return d
}

type demandKey struct{} // in a context: demand

// withoutGuards returns a context that guards nothing.
func withoutGuards(ctx context.Context) context.Context {
	if len(demandOf(ctx).keys) == 0 {
		return ctx
	}
	return context.WithValue(ctx, demandKey{}, demand{})
}

func demandOf(ctx context.Context) demand {
	d, _ := ctx.Value(demandKey{}).(demand)
	return d
}
