package undone_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/onelane/onelane/internal/undone"
)

func TestCertain_EveryBranch(t *testing.T) {
	t.Parallel()
	other, known := errors.New("other"), errors.New("known")
	mark := undone.Mark(errors.New("rolled back"))
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nil":                {nil, false},
		"marked":             {mark, true},
		"marked twice":       {undone.Mark(mark), true},
		"wrapped":            {fmt.Errorf("sell: %w", mark), true},
		"another error":      {fmt.Errorf("sell: %w", other), false},
		"known":              {fmt.Errorf("sell: %w", known), true},
		"both":               {errors.Join(mark, known), true},
		"beside an effect":   {errors.Join(mark, other), false},
		"in a joined branch": {fmt.Errorf("a: %w", fmt.Errorf("%w: %w", mark, other)), false},
		"mark around others": {undone.Mark(errors.Join(known, other)), true},
		"mark of nil":        {undone.Mark(nil), false},
	} {
		if got := undone.Certain(c.err, func(err error) bool { return err == known }); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !errors.Is(mark, errors.Unwrap(mark)) || mark.Error() != "rolled back" {
		t.Error("the mark hides its error")
	}
}
