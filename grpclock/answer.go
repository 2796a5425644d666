package grpclock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/claim"
)

// The status of a record is the gRPC code. The body is a google.protobuf.Any with the message, or a
// google.rpc.Status. The names of metadata begin with one of these.
const (
	inHeader  = "header:"
	inTrailer = "trailer:"
)

// replayedTrailer is set on every replay, and originalTrailer if the first call had an id.
const (
	replayedTrailer = "idempotency-replayed"
	originalTrailer = "idempotency-original-request"
)

var errTooLarge = errors.New("the answer is larger than MaxBody; raise it, or send less")

// record returns the record of an answer, or a tombstone.
func (c *call) record(resp any, err error, sent *stream) *claim.Record {
	body, problem := c.body(resp, err)
	r := &claim.Record{Status: int(statusOf(err).Code()), Body: body, Header: sent.recorded()}
	size := len(body)
	for name, values := range r.Header {
		for _, v := range values {
			size += len(name) + len(v)
		}
	}
	if problem == nil && size > c.MaxBody {
		problem = errTooLarge
	}
	if problem != nil {
		c.log(slog.LevelError, "grpclock: the answer cannot be recorded; a retry is refused", problem)
		return claim.Tombstone()
	}
	return r
}

// body returns the bytes of a message or of an error.
func (c *call) body(resp any, err error) ([]byte, error) {
	if err != nil {
		p := statusOf(err).Proto()
		p.Message = string([]rune(p.Message)) // as gRPC sends it: protobuf takes no other text than UTF-8
		return proto.Marshal(p)
	}
	msg := messageOf(resp)
	if msg == nil {
		return nil, fmt.Errorf("the answer is a %T and no protobuf message", resp)
	}
	t := msg.ProtoReflect().Type()
	name := t.Descriptor().FullName()
	if c.desc != nil && c.desc.Output().FullName() != name {
		return nil, fmt.Errorf(
			"it is a %q, and the method answers with %q", name, c.desc.Output().FullName(),
		)
	}
	if proto.Size(msg) > c.MaxBody {
		return nil, errTooLarge
	}
	var body anypb.Any
	if err := anypb.MarshalFrom(&body, msg, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, err
	}
	c.answers.Store(&t)
	return proto.Marshal(&body)
}

// replay answers with a record.
func (c *call) replay(r *claim.Record) (any, error) {
	if r.NotKept {
		return nil, c.refuse(idempotency.RefusalOf(idempotency.CodeResponseNotKept))
	}
	resp, answer, err := c.recorded(r)
	if err != nil {
		c.log(slog.LevelError, "grpclock: a record does not belong to this method; the call is refused", err)
		return nil, c.refuse(idempotency.RefusalOf(idempotency.CodeResponseNotKept))
	}
	header, trailer := metadata.MD{}, metadata.Pairs(replayedTrailer, "true")
	if id := r.Run.RequestID; id != "" {
		trailer.Set(originalTrailer, id)
	}
	for key, values := range r.Header {
		// A name may have been recorded under other options.
		if name, ok := strings.CutPrefix(key, inHeader); ok && c.metadata[name] {
			header[name] = values
		} else if name, ok := strings.CutPrefix(key, inTrailer); ok && c.metadata[name] {
			trailer[name] = values
		}
	}
	// They fail if an interceptor outside has sent its headers already. The answer counts more.
	_ = grpc.SetHeader(c.ctx, header)
	_ = grpc.SetTrailer(c.ctx, trailer)
	return resp, answer
}

// recorded returns the message or the status in a record. If err is set, the record has neither.
func (c *call) recorded(r *claim.Record) (resp any, answer, err error) {
	if r.Status != int(codes.OK) {
		var st spb.Status
		if err := proto.Unmarshal(r.Body, &st); err != nil {
			return nil, nil, err
		}
		if int(st.Code) != r.Status {
			return nil, nil, fmt.Errorf("the record has two codes, %d and %d", r.Status, st.Code)
		}
		return nil, status.FromProto(&st).Err(), nil
	}
	var body anypb.Any
	if err := proto.Unmarshal(r.Body, &body); err != nil {
		return nil, nil, err
	}
	t, err := c.answerType(body.MessageName())
	if err != nil {
		return nil, nil, err
	}
	msg := t.New().Interface()
	return msg, nil, proto.Unmarshal(body.Value, msg)
}

// neverRecorded reports whether metadata of this name is a credential, or the transport's.
func neverRecorded(name string) bool {
	switch name {
	case "content-type",
		"user-agent",
		"te",
		"connection",
		"keep-alive",
		"transfer-encoding",
		"upgrade",
		"trailer",
		"content-length",
		"date",
		"authorization",
		"set-cookie",
		"www-authenticate",
		replayedTrailer:
		return true
	}
	return strings.HasPrefix(name, "grpc-") || strings.HasPrefix(name, "proxy-")
}

// stream remembers the metadata that a handler sets. To ask gRPC's stream for it would be a data
// race with goroutines that the handler left behind.
type stream struct {
	grpc.ServerTransportStream
	outer context.Context
	names map[string]bool

	mu  sync.Mutex
	set map[string][]string
}

// remember returns the handler's context. The stream is nil if no metadata is recorded.
func (c *call) remember(ctx context.Context) (context.Context, *stream) {
	inner := grpc.ServerTransportStreamFromContext(ctx)
	if inner == nil || len(c.metadata) == 0 {
		return ctx, nil
	}
	s := &stream{
		ServerTransportStream: inner,
		outer:                 c.ctx,
		names:                 c.metadata,
		set:                   make(map[string][]string),
	}
	return grpc.NewContextWithServerTransportStream(ctx, s), s
}

// Context is for an interceptor inside that looks for the client's deadline.
func (s *stream) Context() context.Context {
	if inner, ok := s.ServerTransportStream.(interface{ Context() context.Context }); ok {
		return inner.Context()
	}
	return s.outer
}

func (s *stream) SetHeader(md metadata.MD) error {
	return s.keep(inHeader, md, s.ServerTransportStream.SetHeader(md))
}

func (s *stream) SendHeader(md metadata.MD) error {
	return s.keep(inHeader, md, s.ServerTransportStream.SendHeader(md))
}

func (s *stream) SetTrailer(md metadata.MD) error {
	return s.keep(inTrailer, md, s.ServerTransportStream.SetTrailer(md))
}

// keep remembers metadata. The stream takes none when the client has hung up, but a retry gets it.
func (s *stream) keep(prefix string, md metadata.MD, err error) error {
	if err != nil && s.outer.Err() == nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, values := range md {
		if s.names[strings.ToLower(name)] {
			key := prefix + strings.ToLower(name)
			s.set[key] = append(s.set[key], values...)
		}
	}
	return nil
}

// recorded returns what was set so far. Metadata that is set later is not recorded.
func (s *stream) recorded() map[string][]string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.set
	s.set = make(map[string][]string)
	return set
}
