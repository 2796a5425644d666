package stock

// Hold keeps all transactions of a sale from beginning, until the returned function is called.
func Hold[Row, Order any](s *Sale[Row, Order]) (release func()) {
	for range cap(s.slots) {
		s.slots <- struct{}{}
	}
	return func() {
		for range cap(s.slots) {
			<-s.slots
		}
	}
}

// AskForLevel makes the transactions of a sale ask for READ COMMITTED, as after a conflict.
func AskForLevel[Row, Order any](s *Sale[Row, Order]) { s.explicit.Store(true) }

// Queued counts the calls in all lanes of a sale.
func Queued[Row, Order any](s *Sale[Row, Order]) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		n += len(l.waiting)
	}
	return n
}

// Lanes counts the lanes of a sale.
func Lanes[Row, Order any](s *Sale[Row, Order]) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lanes)
}

// Duplicate reports whether the database refused a row because of a unique index.
var Duplicate = duplicate
