package stock

import (
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"
)

// cloner copies orders. Each try to store an order works on a copy of its own. GORM and hooks write
// ids, times and foreign keys into it, and a rollback does not take them out again.
type cloner struct {
	models []*schema.Schema
	copied map[reflect.Type]bool // structs that are copied with what has a pointer to them
	deep   bool                  // there is more than the order itself
}

func newCloner(db *gorm.DB, order *schema.Schema) (cloner, error) {
	c := cloner{copied: make(map[reflect.Type]bool)}
	for next := []*schema.Schema{order}; len(next) > 0; next = next[1:] {
		m := next[0]
		if slices.Contains(c.models, m) {
			continue
		}
		c.models = append(c.models, m)
		c.copied[m.ModelType] = true
		for _, f := range m.Fields {
			c.copyEmbedded(m.ModelType, f)
		}
		r := &m.Relationships
		for _, rel := range slices.Concat(r.BelongsTo, r.HasOne, r.HasMany, r.Many2Many) {
			child, err := schemaOf(db, rel.FieldSchema.ModelType)
			if err != nil {
				return c, err
			}
			next = append(next, child)
		}
	}
	c.deep = len(c.models) > 1
	return c, nil
}

// copyEmbedded notes the embedded structs on the way to a field that are pointers.
func (c *cloner) copyEmbedded(t reflect.Type, f *schema.Field) {
	for _, i := range f.StructField.Index {
		if i >= 0 {
			t = t.Field(i).Type
			continue
		}
		t = t.Field(-i - 1).Type.Elem()
		c.copied[t] = true
	}
}

// clone copies an order and its associations. Other things that it points to, such as a map in a
// field, are shared.
func (c *cloner) clone(order reflect.Value) reflect.Value {
	out := reflect.New(order.Type().Elem())
	out.Elem().Set(order.Elem())
	if len(c.copied) > 1 || c.deep {
		c.copyFields(out.Elem(), map[any]reflect.Value{order.Interface(): out})
	}
	return out
}

// copyFields replaces what the fields of a copied struct point to by copies.
func (c *cloner) copyFields(v reflect.Value, done map[any]reflect.Value) {
	for i := range v.NumField() {
		if f := v.Field(i); f.CanSet() && c.reaches(f.Type()) {
			c.copyValue(f, done)
		}
	}
}

// reaches reports whether a field of this type holds structs to copy.
func (c *cloner) reaches(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
		t = t.Elem()
	}
	return c.copied[t] || t.Kind() == reflect.Struct && slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
		return f.Anonymous && f.Type != t && c.reaches(f.Type)
	})
}

func (c *cloner) copyValue(v reflect.Value, done map[any]reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		known, ok := done[v.Interface()]
		if !ok {
			known = reflect.New(v.Type().Elem())
			known.Elem().Set(v.Elem())
			done[v.Interface()] = known
			c.copyValue(known.Elem(), done)
		}
		v.Set(known)
	case reflect.Slice:
		if v.IsNil() {
			return
		}
		fresh := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(fresh, v)
		v.Set(fresh)
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			c.copyValue(v.Index(i), done)
		}
	case reflect.Struct:
		c.copyFields(v, done)
	}
}
