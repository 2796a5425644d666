package main

import (
	"strings"
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

// ls shows a claim of a newer version by a key with a hash. "It is free" must not be the answer to that key.
func TestInspect_HashedKeyOfANewerVersion(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	key := "claim:shop:ann:sha256:" + strings.Repeat("ab", 32)
	if _, err := etcd.Client().Put(t.Context(), "onelane:{"+key+"}", `{"onelane":2,"state":"sealed","owner":"shop-1/00","ttl_ms":60000}`+"\n"); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"inspect", key}, {"unseal", key}} {
		_, errs := ctl(t, 2, append(args, "-etcd", etcd.Addr())...)
		contains(t, errs, "newer version")
	}
}
