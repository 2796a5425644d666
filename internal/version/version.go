// Package version tells which version of this module a program was built with.
package version

import (
	"runtime/debug"
	"sync"
)

const module = "github.com/onelane/onelane"

// Of returns the version of this module in the running program, for example "v1.2.3", or "" if the
// program does not know.
var Of = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return of(info)
})

func of(info *debug.BuildInfo) string {
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			return m.Replace.Version
		}
		return m.Version
	}
	return ""
}
