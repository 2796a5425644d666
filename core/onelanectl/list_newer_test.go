package main

import (
	"testing"

	"github.com/onelane/onelane/testutil"
)

// The services are newer than the command. "Nothing is held" and "forgotten" must not be its answers.
func TestList_KeyOfANewerVersion(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	if _, err := etcd.Client().Put(t.Context(), "onelane:{order:9}", `{"onelane":2,"state":"held","owner":"shop-1/00","ttl_ms":60000}`+"\n"); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"ls", "order:"}, {"ls", "order:", "-held"}, {"forget", "order:"}, {"forget", "order:", "-yes"}} {
		_, errs := ctl(t, 2, append(args, "-etcd", etcd.Addr())...)
		contains(t, errs, "order:9", "newer version")
	}
}
