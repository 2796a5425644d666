package ginlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"

	"github.com/onelane/onelane/idempotency"
)

const jsonForm = "once, as a text of 1 to 255 bytes without control characters, or as a whole number."

var (
	errNotJSON = errors.New("the body is not JSON, or its Content-Type says that it is not")
	errBound   = errors.New("with a query the request must not be a GET, and its Content-Type must be application/json")
	errNoValue = errors.New("it is neither a text nor a whole number")
)

// bodyError says that the body could not be read.
type bodyError struct{ error }

func (e *bodyError) Unwrap() error { return e.error }

// jsonKey reads the key from a member of the body. What gin's ShouldBind does not take for JSON, Application/JSON, say,
// or application/merge-patch+json, it reads from the query.
func (m *middleware) jsonKey(c *gin.Context, path []string) (string, error) {
	media, _, err := mime.ParseMediaType(c.GetHeader("Content-Type"))
	if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
		return "", errNotJSON // a handler could read it as a form, and find another value in it
	}
	if c.Request.URL.RawQuery != "" && binding.Default(c.Request.Method, c.ContentType()) != binding.JSON {
		return "", errBound
	}
	body, err := m.readBody(c)
	if err != nil {
		return "", &bodyError{err}
	}
	return jsonMember(body, path)
}

// jsonMember finds the value at a path. It is strict where JSON is not: whoever reads the same body must find the same
// value, so there is one document, and one member of each name on the path, whatever its case.
func jsonMember(body []byte, path []string) (string, error) {
	if !utf8.Valid(body) {
		return "", errNotJSON // readers replace what is not UTF-8, each in its own way
	}
	value := json.RawMessage(body)
	if !json.Valid(value) {
		return "", errNotJSON
	}
	for _, name := range path {
		var err error
		if value, err = memberOf(value, name); err != nil {
			return "", err
		}
	}
	return scalar(value)
}

// memberOf returns the member of an object; idempotency.ErrNoKey where there is none, or value is no object.
func memberOf(value json.RawMessage, name string) (json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, idempotency.ErrNoKey
	}
	var found json.RawMessage
	for d.More() {
		token, err := d.Token()
		var member json.RawMessage
		if err == nil {
			err = d.Decode(&member)
		}
		if err != nil {
			return nil, errNotJSON
		}
		if text, _ := token.(string); !strings.EqualFold(text, name) {
			continue
		}
		if found != nil {
			return nil, errTwice
		}
		found = member
	}
	if found == nil || string(found) == "null" {
		return nil, idempotency.ErrNoKey
	}
	return found, nil
}

// scalar is a text or a whole number as text.
func scalar(value json.RawMessage) (string, error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	token, err := d.Token()
	if err != nil && err != io.EOF {
		return "", errNotJSON
	}
	switch v := token.(type) {
	case string:
		return validValue(v)
	case json.Number: // 1.0 and 1e0 are the same to some readers, and an error to others
		if text := v.String(); !strings.ContainsAny(text, ".eE") && text != "-0" {
			return validValue(text)
		}
	}
	return "", errNoValue
}
