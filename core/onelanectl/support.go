package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// support runs the commands that know callers and answers.
func (o *options) support(ctx context.Context, locker *core.Locker, at place, out *printer) error {
	s := &idempotency.Support{Locker: locker}
	if o.service != "" {
		s.Options = append(s.Options, idempotency.Service(o.service))
	}
	switch o.args[0] {
	case "find":
		return o.find(ctx, s, out)
	case "erase":
		o.args[1] = s.Key(o.args[1]) + ":"
		return o.forget(ctx, locker, at, out)
	}
	header := http.Header{}
	if o.mediaType != "" {
		header.Set("Content-Type", o.mediaType)
	}
	if err := s.Answer(ctx, o.args[1], o.status, header, o.body); err != nil {
		return err
	}
	return out.done(o.args[1], "answered")
}

// find shows what is kept for a key as the client sends it, over HTTP and over gRPC.
func (o *options) find(ctx context.Context, s *idempotency.Support, out *printer) error {
	sources := [][]string{{"Idempotency-Key"}, {"grpc", "metadata idempotency-key"}}
	if o.source != "" {
		sources = [][]string{{http.CanonicalHeaderKey(o.source)}, {"grpc", o.source}}
	}
	found := false
	for _, source := range sources {
		key := s.Key(o.args[1], append(source, o.args[2])...)
		f, err := s.Find(ctx, key)
		if err != nil {
			return err
		}
		if f.Status == core.Free {
			continue
		}
		st, err := s.Locker.Inspect(ctx, f.Key)
		if err != nil {
			return err
		}
		if err := out.one(f.Key, st); err != nil {
			return err
		}
		found = true
	}
	if !found {
		return fmt.Errorf("caller %q has no key %q there; the key of a template has its route: take it from the log: %w", o.args[1], o.args[2], errFree)
	}
	return nil
}
