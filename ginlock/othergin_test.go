package ginlock

import (
	"net/http"
	"testing"
)

// A Gin whose Context has other fields: the middleware cannot see whether a handler follows it.
func TestWiring_OtherGin(t *testing.T) {
	was := index
	index = nil // what field returns then
	defer func() { index = was }()
	defer func() {
		if recover() == nil {
			t.Error("a middleware that cannot see its place in Gin's chain was made")
		}
	}()
	adapt(func(next http.Handler) http.Handler { return next })
}

// The fields that ginlock reads are those of this Gin.
func TestWiring_FieldsOfGin(t *testing.T) {
	if index == nil || handlers == nil {
		t.Error("gin.Context has no index or no handlers any more: see adapt")
	}
}
