package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/onelane/onelane/internal/keytext"
)

const jsonForm = "once, as a text of 1 to 255 bytes without control characters, or as a whole number."

var (
	errNotJSON = errors.New("the body is not JSON, or its Content-Type says that it is not")
	errBound   = errors.New("with a query the request must not be a GET, and its Content-Type must be application/json")
	errNoValue = errors.New("it is neither a text nor a whole number")
)

// bodyError means that the body could not be read.
type bodyError struct{ error }

func (e *bodyError) Unwrap() error { return e.error }

// jsonKey reads the key from a member of the body. The handler must find the same value that is
// locked, so the content type must be JSON.
func (f *front) jsonKey(r *http.Request, path []string) (string, error) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
		return "", errNotJSON
	}
	if r.URL.RawQuery != "" && !f.router.bound(r) {
		return "", errBound
	}
	body, err := f.readBody(r)
	if err != nil {
		return "", &bodyError{err}
	}
	return jsonMember(body, path)
}

// jsonMember returns the value at a path. It is stricter than JSON, because every reader of the
// body must find the same value. So the body must be one document, and each name on the path must
// occur once, whatever its case.
func jsonMember(body []byte, path []string) (string, error) {
	value := json.RawMessage(body)
	if !utf8.Valid(body) || !json.Valid(body) { // readers replace other bytes, each in its own way
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

// memberOf returns the member of an object. The error is keytext.ErrNoKey if there is none.
func memberOf(value json.RawMessage, name string) (json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, keytext.ErrNoKey
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
		return nil, keytext.ErrNoKey
	}
	return found, nil
}

// scalar returns a text, or a whole number as text.
func scalar(value json.RawMessage) (string, error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	token, _ := d.Token() // the value is valid
	switch v := token.(type) {
	case string:
		return keytext.Value(v)
	case json.Number: // some readers take 1.0 and 1e0 for 1, others refuse them
		if text := v.String(); !strings.ContainsAny(text, ".eE") && text != "-0" {
			return keytext.Value(text)
		}
	}
	return "", errNoValue
}
