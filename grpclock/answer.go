package grpclock

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/onelane/onelane/idempotency"
)

// In a record the status is the gRPC code, and the body a google.protobuf.Any with the message, or a google.rpc.Status.
// The names of metadata begin with where it was sent.
const (
	inHeader  = "header:"
	inTrailer = "trailer:"
)

// replayedTrailer is set on every replay.
const replayedTrailer = "idempotency-replayed"

var errTooLarge = errors.New("it is larger than MaxBody")

// record is an answer as it is kept. With an error it is a tombstone.
func (c *call) record(resp any, err error, sent *sent) (*idempotency.Record, error) {
	body, problem := c.body(resp, err)
	if problem != nil {
		return idempotency.Tombstone(), problem
	}
	r := &idempotency.Record{Status: int(statusOf(err).Code()), Body: body, Header: make(map[string][]string)}
	size := len(body)
	header, trailer := sent.since()
	for prefix, md := range map[string]metadata.MD{inHeader: header, inTrailer: trailer} {
		for name, values := range md {
			if unrecorded(name) || len(values) == 0 {
				continue
			}
			r.Header[prefix+name] = values
			for _, v := range values {
				size += len(name) + len(v)
			}
		}
	}
	if size > c.maxBody {
		return idempotency.Tombstone(), errTooLarge
	}
	return r, nil
}

// body is an answer without its metadata.
func (c *call) body(resp any, err error) ([]byte, error) {
	if err != nil {
		return proto.Marshal(statusOf(err).Proto())
	}
	msg := messageOf(resp)
	if msg == nil {
		return nil, fmt.Errorf("it is a %T, no protobuf message", resp)
	}
	t := msg.ProtoReflect().Type()
	name := t.Descriptor().FullName()
	if c.desc != nil && c.desc.Output().FullName() != name {
		return nil, fmt.Errorf("it is a %q, and the method answers with %q", name, c.desc.Output().FullName())
	}
	if proto.Size(msg) > c.maxBody {
		return nil, errTooLarge
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return nil, err
	}
	c.answers.Store(&t)
	return proto.Marshal(&anypb.Any{TypeUrl: "type.googleapis.com/" + string(name), Value: b})
}

// replay answers with what was recorded.
func (c *call) replay(r *idempotency.Record) (any, error) {
	if r.NotKept {
		return nil, c.refuse(refuseNotKept)
	}
	resp, answer, err := c.recorded(r)
	if err != nil {
		c.note(slog.LevelError, "grpclock: a record is none of this method; the call is refused", err)
		return nil, c.refuse(refuseNotKept)
	}
	header, trailer := metadata.MD{}, metadata.Pairs(replayedTrailer, "true")
	for key, values := range r.Header {
		if name, ok := strings.CutPrefix(key, inHeader); ok && !unrecorded(name) {
			header[name] = values
		} else if name, ok := strings.CutPrefix(key, inTrailer); ok && !unrecorded(name) {
			trailer[name] = values
		}
	}
	// They fail when an interceptor outside has sent its headers already: the answer counts more.
	_ = grpc.SetHeader(c.ctx, header)
	_ = grpc.SetTrailer(c.ctx, trailer)
	return resp, answer
}

// recorded is the answer in a record: a message or a status. err says why it has none.
func (c *call) recorded(r *idempotency.Record) (resp any, answer, err error) {
	code := codes.Code(r.Status)
	if r.Status < 0 || code > codes.Unauthenticated {
		return nil, nil, fmt.Errorf("its status is %d, no code of gRPC", r.Status)
	}
	if code != codes.OK {
		var st spb.Status
		if err := proto.Unmarshal(r.Body, &st); err != nil {
			return nil, nil, err
		}
		if codes.Code(st.Code) != code {
			return nil, nil, fmt.Errorf("it has the codes %v and %v", code, codes.Code(st.Code))
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
	if err := proto.Unmarshal(body.Value, msg); err != nil {
		return nil, nil, err
	}
	return msg, nil, nil
}

// unrecorded says that metadata of this name is never recorded: what the transport sets itself, and credentials.
func unrecorded(name string) bool {
	switch name {
	case "content-type", "user-agent", "te", "connection", "keep-alive", "transfer-encoding", "upgrade", "trailer",
		"content-length", "date", "authorization", "set-cookie", "set-cookie2", "www-authenticate",
		"authentication-info", replayedTrailer, "":
		return true
	}
	return name[0] == ':' || strings.HasPrefix(name, "grpc-") || strings.HasPrefix(name, "proxy-")
}
