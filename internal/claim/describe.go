package claim

import (
	"encoding/base64"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// Description is what an operator can know of a claim or a step without its encryption key.
type Description struct {
	Run Run
	// Status is the status of a recorded answer, or 0.
	Status int
	// NotKept means that the answer was not kept.
	NotKept bool
	// Again means that a retry runs if the run has ended without an answer.
	Again bool
	// Encrypted names the key that the rest is encrypted with.
	Encrypted string
}

// Describe describes the claim or step under a key. If the key belongs to neither, ok is false.
func Describe(key string, st core.State) (d Description, ok bool) {
	if !strings.HasPrefix(key, KeyPrefix) && !strings.HasPrefix(key, StepPrefix) {
		return d, false
	}
	switch st.Status {
	case core.Held, core.Orphaned:
		d.Run = Run{Begun: ownertext.Asked(st.Owner), Instance: instanceOf(st.Owner)}
		tag := ownerTag(st.Owner)
		if text, plain := strings.CutPrefix(tag, plainTag); plain {
			b, _ := base64.RawURLEncoding.DecodeString(text)
			if m, ok := markOf(b); ok {
				d.Run.Begun, d.Run.RequestID, d.Again = time.UnixMilli(m.begun), m.requestID, m.again
			}
		} else if text, encrypted := strings.CutPrefix(tag, encryptedTag); encrypted {
			d.Encrypted, _, _ = strings.Cut(text, ".")
		}
		return d, true
	case core.Sealed:
		p, err := unmarshal(st.Value)
		if err != nil {
			return d, false
		}
		if p.Version == envelopeVersion {
			return Description{Encrypted: p.KeyId}, true
		}
		if r, _, err := decode(p); err == nil {
			return Description{Run: r.Run, Status: r.Status, NotKept: r.NotKept}, true
		}
	}
	return d, false
}
