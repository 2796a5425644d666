package check

import (
	"flag"
	"runtime"
	"strconv"
)

// Parallel lets so many parallel tests run at a time on each processor. A flag -parallel wins. Call
// it in TestMain of a package whose tests spend their time in waits: for leases, locks and servers.
func Parallel(perProcessor int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(perProcessor*runtime.GOMAXPROCS(0)))
	}
}
