package grpclock

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/onelane/onelane/internal/keytemplate"
	"github.com/onelane/onelane/internal/keytext"
)

type source = keytemplate.Source[*call]

var principalSource = keytemplate.OfPrincipal(func(c *call) (string, error) { return c.who(), nil })

func metadataSource(name string) (source, error) {
	name = strings.ToLower(name)
	switch {
	case !validName(name):
		return source{}, errors.New("pass the name of metadata, for example idempotency-key")
	case strings.HasSuffix(name, "-bin"):
		return source{}, errors.New("a key is text, and metadata whose name ends in -bin is not")
	case name == "host":
		return source{}, errors.New("gRPC removes host from the metadata: use another name")
	case strings.HasPrefix(name, "grpc-"):
		return source{}, errors.New("names that begin with grpc- are gRPC's own")
	}
	return source{
		Name: "metadata " + name, Place: "the metadata " + name, Form: keytext.KeyForm,
		Read: func(c *call) (string, error) {
			return keytext.Parse(metadata.ValueFromIncomingContext(c.ctx, name))
		},
	}, nil
}

func fieldSource(path string) source {
	return source{
		Name: "field " + path, Place: "the field " + path, Form: keytext.ValueForm, Reads: []string{path},
		Read: func(c *call) (string, error) { return validValue(c.field(path)) },
	}
}

func funcSource(fn func(ctx context.Context, req any) (string, error)) source {
	return keytemplate.OfFunc(
		func(c *call) (string, error) { return fn(c.ctx, c.req) },
		func(c *call, err error) error {
			if _, hasStatus := status.FromError(err); hasStatus {
				return err
			}
			c.log(slog.LevelWarn, "grpclock: no key could be made; the call is refused", err)
			return keytext.ErrFunc
		},
	)
}

// qualifiedField reads a field of a ByKey template.
func qualifiedField(field string) (source, error) {
	kind, name, _ := strings.Cut(field, ".")
	switch {
	case field == "principal":
		return principalSource, nil
	case kind == "metadata":
		return metadataSource(name)
	case kind == "req" && validPath(name):
		return fieldSource(name), nil
	}
	return source{}, errors.New("it must be {req.path.of.field}, {metadata.name} or {principal}")
}

// templateSource reads a template. The function parse says what its fields mean.
func templateSource(text string, parse func(field string) (source, error)) (source, error) {
	return keytemplate.OfTemplate(text, parse)
}

// validValue checks a field that is part of a key. A field that is not set is empty.
func validValue(key string) (string, error) {
	if key == "" {
		return "", keytext.ErrNoKey
	}
	return keytext.Value(key)
}

// validName reports whether a lower-case name can be that of metadata.
func validName(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	}) < 0
}

// validPath reports whether path can be a path of fields.
func validPath(path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		if !protoreflect.Name(name).IsValid() {
			return false
		}
	}
	return true
}
