package ownertext_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/internal/ownertext"
)

func TestNew_RoundTrip(t *testing.T) {
	for _, c := range []struct {
		instance, tag string
		orphan        time.Duration
	}{
		{"host:1", "", 0},
		{"host:1", "a tag", 0},
		{"host;5", "a;7#b/c", 0},
		{"host:1", "", time.Hour},
		{"host;5", ";9", 1500 * time.Microsecond},
	} {
		owner := ownertext.New(c.instance, c.tag, c.orphan)
		holder, tag := ownertext.Split(owner)
		if !strings.HasPrefix(holder, c.instance+"/") || len(holder) != len(c.instance)+33 || tag != c.tag {
			t.Errorf("Split(%q) = %q, %q", owner, holder, tag)
		}
		want := time.Duration(ownertext.Millis(c.orphan)) * time.Millisecond
		if got := ownertext.Orphan(owner); got != want {
			t.Errorf("Orphan(%q) = %v, want %v", owner, got, want)
		}
	}
	if a, b := ownertext.New("i", "", 0), ownertext.New("i", "", 0); a == b {
		t.Errorf("two owners are equal: %q", a)
	}
}

func TestSplit_ForeignOwner(t *testing.T) {
	for _, owner := range []string{"", "YWJj", "a;b", "x/y;z", "x/y;-4", "x/y;99999999999999999999"} {
		if got := ownertext.Orphan(owner); got != 0 {
			t.Errorf("Orphan(%q) = %v, want 0", owner, got)
		}
	}
}

// A value that another program wrote may be long, or a secret.
func TestSplit_HidesForeignValues(t *testing.T) {
	ours := ownertext.New("host", "tag", time.Hour)
	for _, secret := range []string{"s3cret", "s3cret#s3cret", "a/s3cret;60000#s3cret", strings.Repeat("s3cret", 50_000), ours[:len(ours)-40] + "s3cret#",
		strings.Repeat("s3cret", 100) + "/00112233445566778899aabbccddeeff"} {
		holder, tag := ownertext.Split(secret)
		if strings.Contains(holder+tag, "s3cret") || !strings.Contains(holder, fmt.Sprintf(" %d bytes", len(secret))) {
			t.Errorf("Split(%.60q) = %q, %q", secret, holder, tag)
		}
		if again, _ := ownertext.Split(secret); again != holder || ownertext.Shown(secret) != holder {
			t.Errorf("%q, then %q", holder, again)
		}
		if another, _ := ownertext.Split(strings.ToUpper(secret)); another == holder {
			t.Errorf("two values are %q", another)
		}
	}
	for _, shown := range []string{"", ours} {
		if got := ownertext.Shown(shown); got != shown {
			t.Errorf("Shown(%q) = %q", shown, got)
		}
	}
}

func TestAsked(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	for _, owner := range []string{ownertext.New("i", "", 0), ownertext.New("i", "tag", time.Hour)} {
		if at := ownertext.Asked(owner); at.Before(before) || at.After(time.Now()) {
			t.Errorf("Asked(%q) = %v", owner, at)
		}
	}
	for _, owner := range []string{"", "YWJj", "i/", "i/00", "i/0123456789abcdef0123456789abcdef", "i/ffffffffffff00000000000000000000"} {
		if at := ownertext.Asked(owner); !at.IsZero() {
			t.Errorf("Asked(%q) = %v, want the zero time", owner, at)
		}
	}
}
