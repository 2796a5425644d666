package main

import (
	"context"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// listed is a place that has these keys.
type listed []string

func (listed) opener(time.Duration) core.Opener { return nil }

func (l listed) scan(context.Context, search) ([]string, bool, error) { return l, false, nil }

func (listed) Close() error { return nil }

// slowReader reads for so long that the time of the command is over. A script that acts on each
// line does that.
type slowReader struct{ over func() }

func (r slowReader) Write(p []byte) (int, error) {
	r.over()
	return len(p), nil
}

// A script that reads the lines of ls slowly does not take a part of the keys for all of them.
func TestList_SaysThatItsTimeWasOver(t *testing.T) {
	t.Parallel()
	locker := must[*core.Locker](t)(core.New(backendtest.Memory()))
	defer locker.Close()
	for _, key := range []string{"a", "b"} {
		must[*core.Lock](t)(locker.Acquire(t.Context(), key))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := options{prefix: "onelane:", limit: 10, json: true, args: []string{"ls"}}
	if err := o.on(ctx, locker, listed{"a", "b"}, &printer{w: slowReader{cancel}, json: true}); err == nil {
		t.Error("one of two keys was listed, and ls reports success")
	}
}
