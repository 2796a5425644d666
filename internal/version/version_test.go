package version

import (
	"runtime/debug"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"dependency": {debug.BuildInfo{Main: debug.Module{Path: "shop", Version: "v9.9.9"},
			Deps: []*debug.Module{{Path: "other", Version: "v0.1.0"}, {Path: module, Version: "v1.2.3"}}}, "v1.2.3"},
		"replaced": {debug.BuildInfo{Deps: []*debug.Module{{Path: module, Version: "v1.2.3",
			Replace: &debug.Module{Path: "fork", Version: "v1.2.4"}}}}, "v1.2.4"},
		"itself": {debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}, "(devel)"},
		"none":   {debug.BuildInfo{}, ""},
	} {
		if got := of(&c.info); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
