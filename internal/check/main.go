package check

import (
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests and fails if a goroutine is left. Goroutines that end by themselves have 10 s
// for it, and not goleak's half second. A dial to a dead node ends at its time-out, and a busy
// machine may stand still.
func Main(m goleak.TestingM, ignored ...goleak.Option) {
	goleak.VerifyTestMain(settling{m, ignored}, ignored...)
}

type settling struct {
	goleak.TestingM
	ignored []goleak.Option
}

func (m settling) Run() int {
	code := m.TestingM.Run()
	for end := time.Now().Add(10 * time.Second); goleak.Find(m.ignored...) != nil && time.Now().Before(end); {
	}
	return code
}
