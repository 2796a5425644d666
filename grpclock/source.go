package grpclock

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/keytemplate"
)

const maxKey = 255

// What may be wrong with a key. The texts are half a sentence that a client may see.
var (
	errEmpty     = errors.New("it is empty")
	errLong      = errors.New("it has more than 255 bytes")
	errCharacter = errors.New("it has a character that is not allowed")
	errRepeated  = errors.New("it was sent more than once")
	errUUID4     = errors.New("it is not a UUID of version 4")
	errRefused   = errors.New("it is not accepted")
	errNobody    = errors.New("grpclock: the caller is not known")
)

// source is where an interceptor's key comes from.
type source struct {
	name string // for people, and part of the lookup key
	// field says that it is one field of the request.
	field bool
	// principal says that the caller is part of the key already, or none of a lock's business.
	principal bool
	// paths are the fields of the request that are read.
	paths []string
	read  func(c *call) (string, error) // idempotency.ErrNoKey where there is none
	// lock is the lock's key; nil: the key as it is.
	lock func(c *call, key string) string
}

func metadataSource(name string) *source {
	return &source{
		name: "metadata " + name,
		read: func(c *call) (string, error) {
			return idempotency.ParseKey(metadata.ValueFromIncomingContext(c.ctx, name))
		},
		lock: func(_ *call, key string) string { return core.Join("metadata", name, key) },
	}
}

func fieldSource(path string) *source {
	return &source{
		name: "field " + path, field: true, paths: []string{path},
		read: func(c *call) (string, error) {
			key := c.field(path)
			switch {
			case key == "" && c.lockOnly:
				return "", errEmpty // whoever locks a resource must name it
			case key == "":
				return "", idempotency.ErrNoKey
			case c.uuid4:
				return uuid4(key)
			}
			return key, validKey(key)
		},
		lock: func(c *call, key string) string { return core.Join(c.service(), path, key) },
	}
}

func funcSource(key KeyFunc) *source {
	return &source{name: "key", read: func(c *call) (string, error) {
		k, err := key(c.ctx, c.req)
		switch {
		case err == nil && k == "":
			return "", idempotency.ErrNoKey
		case err == nil:
			return k, nil
		}
		if _, ok := status.FromError(err); ok {
			return "", err
		}
		return "", errRefused
	}}
}

// place is what a field of a template stands for.
type place struct {
	kind string // "req", "metadata" or "principal"
	name string // of the field or the metadata
}

// qualifiedField reads a field of a ByKey template.
func qualifiedField(field string) (place, error) {
	kind, name, _ := strings.Cut(field, ".")
	p := place{kind, name}
	switch {
	case field == "principal":
		return p, nil
	case kind == "metadata":
		p.name = strings.ToLower(name)
		if why := badMetadata(p.name); why != "" {
			return p, errors.New(why)
		}
		return p, nil
	case kind == "req" && validPath(name):
		return p, nil
	}
	return p, errors.New("it must be {req.path.of.field}, {metadata.name} or {principal}")
}

// templateSource reads a template, whose fields mean what place says.
func templateSource(text string, meaning func(field string) (place, error)) (*source, error) {
	t, err := keytemplate.Parse(text)
	if err != nil {
		return nil, err
	}
	s := &source{name: text}
	places := make(map[string]place, len(t.Fields()))
	for _, field := range t.Fields() {
		p, err := meaning(field)
		if err != nil {
			return nil, fmt.Errorf("key template %q: {%s}: %w", text, field, err)
		}
		places[field] = p
		switch p.kind {
		case "req":
			s.paths = append(s.paths, p.name)
		case "principal":
			s.principal = true
		}
	}
	s.read = func(c *call) (string, error) {
		return t.Key(func(field string) (string, error) { return c.value(places[field]) })
	}
	return s, nil
}

// value is what a place holds in this call. It is never empty.
func (c *call) value(p place) (string, error) {
	var v string
	switch p.kind {
	case "metadata":
		values := metadata.ValueFromIncomingContext(c.ctx, p.name)
		if len(values) > 1 {
			return "", errRepeated
		}
		if len(values) == 1 {
			v = values[0]
		}
	case "principal":
		if v = c.caller().name; v == "" {
			return "", errNobody
		}
		return v, nil
	default:
		v = c.field(p.name)
	}
	if v == "" {
		return "", errEmpty
	}
	return v, validKey(v)
}

func validKey(key string) error {
	switch {
	case len(key) > maxKey:
		return errLong
	case !utf8.ValidString(key) || strings.IndexFunc(key, unicode.IsControl) >= 0:
		return errCharacter
	}
	return nil
}

// uuid4 is the one text of a UUID of version 4 (RFC 9562).
func uuid4(text string) (string, error) {
	if len(text) != 36 {
		return "", errUUID4
	}
	text = strings.ToLower(text)
	for i, r := range text {
		ok := '0' <= r && r <= '9' || 'a' <= r && r <= 'f'
		switch i {
		case 8, 13, 18, 23:
			ok = r == '-'
		case 14:
			ok = r == '4'
		case 19:
			ok = strings.ContainsRune("89ab", r)
		}
		if !ok {
			return "", errUUID4
		}
	}
	return text, nil
}

// badMetadata says why a lower-case name cannot be that of a key; "" if it can.
func badMetadata(name string) string {
	valid := name != "" && strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	}) < 0
	switch {
	case !valid:
		return "pass the name of metadata, for example idempotency-key"
	case strings.HasSuffix(name, "-bin"):
		return "a key is text, and metadata whose name ends in -bin is not"
	case name == "host":
		return "gRPC takes host out of the metadata: use another name"
	case strings.HasPrefix(name, "grpc-"):
		return "names that begin with grpc- are gRPC's own; it changes grpc-previous-rpc-attempts with every retry, for one"
	}
	return ""
}

// validPath says whether path could be one of fields.
func validPath(path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		if !protoreflect.Name(name).IsValid() {
			return false
		}
	}
	return true
}
