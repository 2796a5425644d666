package core_test

import "os"

// long is whether simulations, storms and long holds run at full size, as in .ci/run.
var long = os.Getenv("ONELANE_LONG") != ""
