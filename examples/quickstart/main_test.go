package main

import (
	"bytes"
	"testing"
)

func TestQuickstart(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out); err != nil {
		t.Fatal(err)
	}
	const want = `payment: 201, replayed: false
payment: 201, replayed: true
payment: 201, replayed: true
order 9 has 1 taker
5 of 5 units sold, 5 orders
the report was written by one process
`
	if out.String() != want {
		t.Errorf("it says\n%swant\n%s", out.String(), want)
	}
}
