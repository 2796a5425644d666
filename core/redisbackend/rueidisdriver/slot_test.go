package rueidisdriver

import "testing"

func TestSlot(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]uint16{ // as CLUSTER KEYSLOT has them
		"":                  0,
		"123456789":         12739,
		"foo":               12182,
		"onelane:{foo}":     12182,
		"{foo}:fence":       12182,
		"{}foo":             9500,
		"a{foo}b{bar}":      12182,
		"{user1000}.follow": 3443,
		"a{unfinished":      4080,
	} {
		if got := slot(key); got != want {
			t.Errorf("slot(%q) = %d, want %d", key, got, want)
		}
	}
}
