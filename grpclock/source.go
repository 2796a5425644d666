package grpclock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/onelane/onelane/internal/keytemplate"
	"github.com/onelane/onelane/internal/keytext"
)

// errNobody means that the caller is anonymous.
var errNobody = errors.New("the caller is not known")

// source is where the key of a call comes from.
type source struct {
	// name is part of the claim's key.
	name string
	// place is where a client sends the key, and form is what it sends there. Both are empty if a
	// function makes the key.
	place string
	form  string
	// content means that the key is made of what was sent, and belongs to its method.
	content bool
	// paths are the fields of the request that are read.
	paths []string
	// read returns keytext.ErrNoKey if there is no key.
	read func(c *call) (string, error)
}

func metadataSource(name string) (*source, error) {
	name = strings.ToLower(name)
	switch {
	case !validName(name):
		return nil, errors.New("pass the name of metadata, for example idempotency-key")
	case strings.HasSuffix(name, "-bin"):
		return nil, errors.New("a key is text, and metadata whose name ends in -bin is not")
	case name == "host":
		return nil, errors.New("gRPC removes host from the metadata: use another name")
	case strings.HasPrefix(name, "grpc-"):
		return nil, errors.New("names that begin with grpc- are gRPC's own")
	}
	return &source{
		name: "metadata " + name, place: "the metadata " + name, form: keytext.KeyForm,
		read: func(c *call) (string, error) {
			return keytext.Parse(metadata.ValueFromIncomingContext(c.ctx, name))
		},
	}, nil
}

func fieldSource(path string) *source {
	return &source{
		name: "field " + path, place: "the field " + path, form: keytext.ValueForm, paths: []string{path},
		read: func(c *call) (string, error) { return validValue(c.field(path)) },
	}
}

func funcSource(fn func(ctx context.Context, req any) (string, error)) *source {
	return &source{
		name: "func", content: true,
		read: func(c *call) (string, error) {
			key, err := fn(c.ctx, c.req)
			if _, hasStatus := status.FromError(err); err != nil && !hasStatus {
				c.log(slog.LevelWarn, "grpclock: no key could be made; the call is refused", err)
				err = keytext.ErrFunc
			}
			switch {
			case err != nil:
				return "", err
			case key == "":
				return "", keytext.ErrNoKey
			case !keytext.IsText(key):
				return "", keytext.ErrCharacter
			}
			return key, nil
		},
	}
}

// principalSource is the caller, as a field of a template.
var principalSource = &source{read: func(c *call) (string, error) {
	who := c.who()
	if who == "" {
		return "", errNobody
	}
	return who, nil
}}

// qualifiedField reads a field of a ByKey template.
func qualifiedField(field string) (*source, error) {
	kind, name, _ := strings.Cut(field, ".")
	switch {
	case field == "principal":
		return principalSource, nil
	case kind == "metadata":
		return metadataSource(name)
	case kind == "req" && validPath(name):
		return fieldSource(name), nil
	}
	return nil, errors.New("it must be {req.path.of.field}, {metadata.name} or {principal}")
}

// fieldError says which field of a template has no valid value.
type fieldError struct {
	*source
	error
}

func (e *fieldError) Unwrap() error { return e.error }

// templateSource reads a template. The function parse says what its fields mean.
func templateSource(text string, parse func(field string) (*source, error)) (*source, error) {
	t, err := keytemplate.Parse(text)
	if err != nil {
		return nil, err
	}
	s := &source{name: "key " + text, content: true}
	fields := make(map[string]*source, len(t.Fields()))
	for _, name := range t.Fields() {
		f, err := parse(name)
		if err != nil {
			return nil, fmt.Errorf("key template %q: {%s}: %w", text, name, err)
		}
		fields[name], s.paths = f, append(s.paths, f.paths...)
	}
	s.read = func(c *call) (string, error) {
		return t.Key(func(name string) (string, error) {
			value, err := fields[name].read(c)
			if err != nil {
				err = &fieldError{fields[name], err}
			}
			return value, err
		})
	}
	return s, nil
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
