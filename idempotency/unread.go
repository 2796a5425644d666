package idempotency

import (
	"io"
	"reflect"
)

// unread reports whether nobody has read a body of net/http to its end. A chunked or streamed body
// that is empty looks the same as one that a middleware outside has read. net/http does not promise
// the field that is read here: without it, a body counts as read, and is refused.
func unread(body io.Reader) bool {
	v := reflect.ValueOf(body)
	for range mostWrappers {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return false
		}
		inner := reflect.Value{}
		for i := range v.NumField() {
			switch f := v.Field(i); {
			case v.Type().Field(i).Name == "sawEOF" && f.Kind() == reflect.Bool:
				return !f.Bool()
			case f.Kind() == reflect.Interface && f.Type().Implements(reflect.TypeFor[io.Reader]()) && !inner.IsValid():
				inner = f
			}
		}
		v = inner
	}
	return false
}

// mostWrappers is how many readers may stand around a body, such as that of http.MaxBytesReader.
const mostWrappers = 8
