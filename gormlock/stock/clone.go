package stock

import (
	"context"
	"reflect"
	"slices"

	"gorm.io/gorm/schema"
)

// clone copies an order with its associations. GORM and hooks write ids, times and foreign keys into
// the copy, and a rollback does not take them out again. Other things that the order points to, such
// as a map, are shared.
//
// It reports alone if the order cannot share an INSERT. GORM deals ids out to associations in order,
// and ON CONFLICT DO NOTHING may skip some. Those are a belongs-to or many-to-many without a key, and
// an owned one with a key.
func (b *batch) clone(order reflect.Value) (clone reflect.Value, alone bool) {
	clone = reflect.New(b.orders.ModelType)
	clone.Elem().Set(order.Elem())
	if len(relations(b.orders)) == 0 {
		return clone, false
	}
	c := cloning{ctx: b.ctx, done: map[any]reflect.Value{order.Interface(): clone}}
	c.associations(b.orders, clone.Elem())
	return clone, c.alone
}

type cloning struct {
	ctx   context.Context
	done  map[any]reflect.Value // by the pointer to the original
	alone bool
}

// associations replaces what a copied model points to by copies.
func (c *cloning) associations(s *schema.Schema, model reflect.Value) {
	for _, rel := range relations(s) {
		if _, zero := rel.Field.ValueOf(c.ctx, model); !zero {
			owned := rel.Type == schema.HasOne || rel.Type == schema.HasMany
			c.association(rel.FieldSchema, owned, rel.Field.ReflectValueOf(c.ctx, model))
		}
	}
}

func (c *cloning) association(s *schema.Schema, owned bool, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		known, ok := c.done[v.Interface()]
		if !ok {
			known = reflect.New(v.Type().Elem())
			known.Elem().Set(v.Elem())
			c.done[v.Interface()] = known
			c.association(s, owned, known.Elem())
		}
		v.Set(known)
	case reflect.Slice:
		fresh := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(fresh, v)
		v.Set(fresh)
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			c.association(s, owned, v.Index(i))
		}
	case reflect.Struct:
		for _, key := range s.PrimaryFields {
			_, zero := key.ValueOf(c.ctx, v)
			c.alone = c.alone || !owned && zero || owned && !zero && key.HasDefaultValue
		}
		c.associations(s, v)
	}
}

func relations(s *schema.Schema) []*schema.Relationship {
	r := &s.Relationships
	return slices.Concat(r.BelongsTo, r.Many2Many, r.HasOne, r.HasMany)
}

// withAssociations appends a model and those that it has associations with.
func withAssociations(s *schema.Schema, all []*schema.Schema) []*schema.Schema {
	if slices.Contains(all, s) {
		return all
	}
	all = append(all, s)
	for _, rel := range relations(s) {
		all = withAssociations(rel.FieldSchema, all)
	}
	return all
}
