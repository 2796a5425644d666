package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/idempotency"
)

// The operator of a consumer answers a call whose outcome is unknown.
func ExampleSupport() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	charge := func(context.Context) (string, error) { return "", errors.New("the connection broke") }
	_, err := idempotency.Do(ctx, locker, "charge:7", charge, idempotency.Retain(time.Hour))
	fmt.Println(errors.Is(err, idempotency.ErrUnknown))

	support := &idempotency.Support{Locker: locker}
	key := support.Key("", "@do") + ":charge:7" // or from the log
	found, err := support.Find(ctx, key)
	fmt.Println(found.Status, err)
	// The provider says that it charged.
	fmt.Println(support.Answer(ctx, found.Key, 0, nil, []byte(`"receipt 1"`)))
	receipt, err := idempotency.Do(ctx, locker, "charge:7", charge, idempotency.Retain(time.Hour))
	fmt.Println(receipt, err)
	// Output:
	// true
	// orphaned <nil>
	// <nil>
	// receipt 1 <nil>
}
