package ginlock

import (
	"reflect"
	"slices"

	"github.com/gin-gonic/gin"
)

// This file has all that Gin does not promise: private fields, and which closures its middlewares
// are. TestFields says what breaks.

// Gin does not show these fields of its Context.
var index = field("index", reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int)
var handlers = field("handlers", reflect.Slice)

// field returns where a field of gin.Context is, or nil with another version of Gin.
func field(name string, kinds ...reflect.Kind) []int {
	if f, ok := reflect.TypeFor[gin.Context]().FieldByName(name); ok && slices.Contains(kinds, f.Type.Kind()) {
		return f.Index
	}
	return nil
}

// pastEnd returns 0 or more if c.Next would run nothing. With 0 the last handler of the chain has
// called the middleware, as the code of oapi-codegen does. It would go on without the lock or the
// claim. With more the chain has run before or was aborted, or the last handler has called another
// middleware before, which called c.Next.
func pastEnd(c *gin.Context) int {
	v := reflect.ValueOf(c).Elem()
	return int(v.FieldByIndex(index).Int()) + 1 - v.FieldByIndex(handlers).Len()
}

// route is a route of an engine, with its chain.
type route struct {
	method, path string
	chain        gin.HandlersChain
}

// routesOf returns the routes of an engine. ok is false with another version of Gin.
func routesOf(engine *gin.Engine) (all []route, ok bool) {
	trees, ok := private[reflect.Value](reflect.ValueOf(engine).Elem(), "trees")
	if !ok || trees.Kind() != reflect.Slice {
		return nil, false
	}
	for i := range trees.Len() {
		tree := trees.Index(i)
		method, ok := private[string](tree, "method")
		root, known := private[reflect.Value](tree, "root")
		if !ok || !known || !below(root, method, &all) {
			return nil, false
		}
	}
	return all, len(all) == len(engine.Routes())
}

// below adds the routes of a node and of those below it.
func below(node reflect.Value, method string, all *[]route) bool {
	if node.Kind() != reflect.Pointer || node.Elem().Kind() != reflect.Struct {
		return false
	}
	chain, ok := private[gin.HandlersChain](node.Elem(), "handlers")
	path, named := private[string](node.Elem(), "fullPath")
	children, found := private[reflect.Value](node.Elem(), "children")
	if !ok || !named || !found || children.Kind() != reflect.Slice {
		return false
	}
	if len(chain) > 0 {
		*all = append(*all, route{method, path, chain})
	}
	for i := range children.Len() {
		if !below(children.Index(i), method, all) {
			return false
		}
	}
	return true
}

// private returns a field of a struct that can be addressed, as it is or as a reflect.Value.
func private[T any](of reflect.Value, name string) (value T, ok bool) {
	f := of.FieldByName(name)
	if !f.IsValid() {
		return value, false
	}
	f = reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem() // may be read
	if value, ok = any(f).(T); ok {
		return value, true
	}
	value, ok = f.Interface().(T)
	return value, ok
}

// code tells which function a closure is of.
func code(h gin.HandlerFunc) uintptr { return reflect.ValueOf(h).Pointer() }

// outermost are middlewares of Gin that belong outside of those of this package, and why.
var outermost = map[uintptr]string{
	code(gin.RecoveryWithWriter(nil)): "gin.Recovery is inside of %s, so the answer to a panic is recorded, although nobody knows " +
		"what the handler did: register gin.Recovery before",
	code(gin.BasicAuth(gin.Accounts{"user": "password"})): "gin.BasicAuth is inside of %s, which answers retries before it: register gin.BasicAuth before",
}
