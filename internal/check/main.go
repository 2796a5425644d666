package check

import (
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests and fails if a goroutine is left. Goroutines have 10 s to end, instead of
// goleak's half second, because a dial to a dead node ends at its time-out.
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
