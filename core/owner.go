package core

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

// newOwner returns a text that no other lease has: "<instance>/<128 random bits>[#tag]".
func newOwner(instance, tag string) string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	b := make([]byte, 0, len(instance)+len(tag)+2+2*len(random))
	b = append(b, instance...)
	b = append(b, '/')
	b = hex.AppendEncode(b, random[:])
	if tag != "" {
		b = append(b, '#')
		b = append(b, tag...)
	}
	return string(b)
}

// splitOwner takes an owner text apart; an owner of another library is its own holder.
func splitOwner(owner string) (holder, tag string) {
	holder, tag, _ = strings.Cut(owner, "#")
	return holder, tag
}
