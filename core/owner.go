package core

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2" // ChaCha8, seeded by the system: nobody else draws the same
	"strings"
)

// newOwner returns a text that no other lease has: "<instance>/<128 random bits>[#tag]".
func newOwner(instance, tag string) string {
	var buffer [maxInstance + maxTag + 34]byte // on the stack: only the text is allocated
	b := append(buffer[:0], instance...)
	b = append(b, '/')
	var random [16]byte
	binary.NativeEndian.PutUint64(random[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(random[8:], rand.Uint64())
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
