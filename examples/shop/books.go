package main

import (
	"context"
	"fmt"
	"strings"
)

// books are the accounts of the shop and of the provider, side by side.
type books struct {
	remaining, sold, delivered   int64
	confirmed, declined, expired int
	charges                      int
	wrong                        []string // what does not match
}

// books waits until the sweep has settled what is left, and compares.
func (w *world) books(ctx context.Context) (b books, err error) {
	db := w.database.WithContext(ctx)
	if err := until(ctx, func() (bool, error) {
		var open int64
		err := db.Model(&Order{}).Where("state = ?", reserved).Count(&open).Error
		return open == 0, err
	}); err != nil {
		return b, fmt.Errorf("wait until no order is reserved: %w", err)
	}
	var row Stock
	var orders []Order
	if err := db.Take(&row, sku).Error; err != nil {
		return b, err
	}
	if err := db.Find(&orders).Error; err != nil {
		return b, err
	}
	w.provider.mu.Lock()
	defer w.provider.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	b.remaining, b.delivered, b.charges = row.Remaining, w.units, len(w.provider.taken)
	decided := map[string]string{confirmed: charged, declined: refused, expired: closed}
	counts := map[string]*int{confirmed: &b.confirmed, declined: &b.declined, expired: &b.expired}
	buyers := make(map[string]string)
	for _, o := range orders {
		*counts[o.State]++
		c := w.provider.keys[o.ID]
		b.check(c.State == decided[o.State], "order %s is %s, and its charge %q", o.ID, o.State, c.State)
		b.check(buyers[o.Buyer] == "", "%s has two orders, %s and %s", o.Buyer, o.ID, buyers[o.Buyer])
		buyers[o.Buyer] = o.ID
		if state, ok := w.states[o.ID]; ok {
			b.check(state == o.State, "order %s is %s, and its buyer got %s", o.ID, o.State, state)
			delete(w.states, o.ID)
		}
		if o.State == confirmed {
			b.sold += o.Units
			b.check(c.Cents == o.cents() && c.Buyer == o.Buyer, "order %s of %s costs %d, and %s paid %d", o.ID, o.Buyer, o.cents(), c.Buyer, c.Cents)
		}
	}
	b.check(len(w.states) == 0, "%d customers got orders that are not there", len(w.states))
	b.check(b.charges == b.confirmed, "%d charges, and %d orders confirmed", b.charges, b.confirmed)
	b.check(b.remaining >= 0 && b.remaining+b.sold == b.delivered, "%d units sold and %d remaining of %d", b.sold, b.remaining, b.delivered)
	return b, nil
}

func (b *books) check(ok bool, format string, args ...any) {
	if !ok {
		b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
	}
}

func (b books) String() string {
	s := fmt.Sprintf("The books: %d units sold and %d remaining of %d; %d orders confirmed and %d charges; %d orders declined, %d expired",
		b.sold, b.remaining, b.delivered, b.confirmed, b.charges, b.declined, b.expired)
	return strings.Join(append([]string{s}, b.wrong...), "\n   wrong: ")
}
