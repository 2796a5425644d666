package grpclock_test

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
)

func ExampleError() {
	busy := &core.TakenError{Key: "stock:42"} // of a guard, for example
	for _, err := range []error{nil, busy, errors.New("no such order")} {
		fmt.Println(status.Code(grpclock.Error(err)))
	}
	// Output:
	// OK
	// Aborted
	// Unknown
}
