package grpclock

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// sent tells what metadata a handler sends. The stream is asked for all there is, before and after; it is not wrapped,
// since grpc.SetSendCompressor and others want it as it is. Only one that cannot be asked, since somebody else has
// wrapped it, is wrapped once more.
type sent struct {
	stream          readable
	wrapped         *listener
	header, trailer metadata.MD // what there was before
}

// readable is what the stream of grpc-go can do.
type readable interface {
	grpc.ServerTransportStream
	Header() (metadata.MD, error)
	Trailer() metadata.MD
}

func capture(ctx context.Context) *sent {
	stream := grpc.ServerTransportStreamFromContext(ctx)
	s := &sent{}
	switch r, ok := stream.(readable); {
	case ok:
		s.stream = r
	case stream != nil:
		s.wrapped = &listener{ServerTransportStream: stream}
		s.stream = s.wrapped
	default:
		return s // no server: a test that calls the interceptor
	}
	s.header, s.trailer = s.now()
	return s
}

func (s *sent) now() (header, trailer metadata.MD) {
	header, _ = s.stream.Header()
	return header, s.stream.Trailer()
}

// ctx is the handler's context.
func (s *sent) ctx(ctx context.Context) context.Context {
	if s.wrapped == nil {
		return ctx
	}
	return grpc.NewContextWithServerTransportStream(ctx, s.wrapped)
}

// since is what was set after capture: gRPC only ever appends.
func (s *sent) since() (header, trailer metadata.MD) {
	if s.stream == nil {
		return nil, nil
	}
	header, trailer = s.now()
	return added(s.header, header), added(s.trailer, trailer)
}

func added(before, after metadata.MD) metadata.MD {
	md := make(metadata.MD, len(after))
	for name, values := range after {
		if n := len(before[name]); n < len(values) {
			md[name] = values[n:]
		}
	}
	return md
}

// listener is a stream that can be asked.
type listener struct {
	grpc.ServerTransportStream
	mu              sync.Mutex
	header, trailer metadata.MD
}

func (l *listener) SetHeader(md metadata.MD) error {
	return l.keep(&l.header, md, l.ServerTransportStream.SetHeader(md))
}

func (l *listener) SendHeader(md metadata.MD) error {
	return l.keep(&l.header, md, l.ServerTransportStream.SendHeader(md))
}

func (l *listener) SetTrailer(md metadata.MD) error {
	return l.keep(&l.trailer, md, l.ServerTransportStream.SetTrailer(md))
}

func (l *listener) keep(to *metadata.MD, md metadata.MD, err error) error {
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		*to = metadata.Join(*to, md)
	}
	return err
}

func (l *listener) Header() (metadata.MD, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.header.Copy(), nil
}

func (l *listener) Trailer() metadata.MD {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trailer.Copy()
}
