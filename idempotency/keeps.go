package idempotency

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
)

// kept are errors, or nil, by reflect.Type.
var kept sync.Map

// keeps returns an error if JSON does not keep a value of type T whole. Only some of these types
// make encoding/json fail. An interface and a field that is not exported are lost silently.
func keeps[T any]() error {
	t := reflect.TypeFor[T]()
	known, ok := kept.Load(t)
	if !ok {
		known = lossy(t, t.String(), true, make(map[visit]bool))
		kept.Store(t, known)
	}
	err, _ := known.(error)
	return err
}

var (
	marshaler       = reflect.TypeFor[json.Marshaler]()
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// visit is a type that the search has passed. A type may contain itself.
type visit struct {
	reflect.Type
	addressable bool
}

const recordOwn = "record a struct of your own that has only what later callers need"

// lossy returns which part of type t JSON loses. encoding/json calls the methods of a pointer only
// if the value is addressable.
func lossy(t reflect.Type, path string, addressable bool, seen map[visit]bool) error {
	if seen[visit{t, addressable}] {
		return nil
	}
	seen[visit{t, addressable}] = true
	switch t.Kind() {
	case reflect.Interface:
		return fmt.Errorf("the result cannot be recorded: %s is the interface %v, and JSON does not keep the type in it: name the type", path, t)
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return fmt.Errorf("the result cannot be recorded: JSON has no %v, and %s is one: %s", t.Kind(), path, recordOwn)
	case reflect.Pointer:
		return lossy(t.Elem(), path, true, seen)
	}
	writes := implements(t, addressable, marshaler, textMarshaler)
	reads := implements(t, true, unmarshaler, textUnmarshaler)
	switch {
	case writes && reads:
		return nil
	case writes:
		return fmt.Errorf("the result cannot be recorded: %s is a %v, which writes itself as JSON and does not read it: add UnmarshalJSON", path, t)
	case reads && implements(t, true, marshaler, textMarshaler):
		return fmt.Errorf("the result cannot be recorded: %s is a %v in a map, where JSON does not call its methods: keep *%v in the map", path, t, t)
	}
	switch t.Kind() {
	case reflect.Slice:
		return lossy(t.Elem(), path+"[]", true, seen)
	case reflect.Array:
		return lossy(t.Elem(), path+"[]", addressable, seen)
	case reflect.Map:
		if err := lossyKey(t.Key(), path); err != nil {
			return err
		}
		return lossy(t.Elem(), path+"[]", false, seen)
	case reflect.Struct:
		return lossyFields(t, path, addressable, seen)
	}
	return nil
}

func implements(t reflect.Type, addressable bool, methods ...reflect.Type) bool {
	for _, m := range methods {
		if t.Implements(m) || addressable && reflect.PointerTo(t).Implements(m) {
			return true
		}
	}
	return false
}

func lossyKey(t reflect.Type, path string) error {
	switch t.Kind() {
	case reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return nil
	}
	if t.Kind() != reflect.Interface && t.Implements(textMarshaler) && implements(t, true, textUnmarshaler) {
		return nil
	}
	return fmt.Errorf("the result cannot be recorded: the keys of the map %s are of type %v, which JSON does not keep: use text or whole numbers", path, t)
}

func lossyFields(t reflect.Type, path string, addressable bool, seen map[visit]bool) error {
	var errs []error
	for f := range t.Fields() {
		name := path + "." + f.Name
		embedded := f.Anonymous && f.Type.Kind() == reflect.Struct
		switch {
		case f.Tag.Get("json") == "-", f.Name == "_": // left out on purpose
		case !f.IsExported() && !embedded:
			errs = append(errs, fmt.Errorf("the result cannot be recorded: the field %s is not exported, and JSON loses it: export it, or %s", name, recordOwn))
		default:
			errs = append(errs, lossy(f.Type, name, addressable, seen))
		}
	}
	return errors.Join(errs...)
}
