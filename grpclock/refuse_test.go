package grpclock_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/onelane/onelane/grpclock"
)

// The table of refusals in both languages has the codes of gRPC that the interceptors use.
func TestRefusals_DocumentedCodes(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [0-9]+ \\| ([A-Z_]+|–)")
	for _, name := range []string{"../docs/idempotency.md", "../docs/zh-CN/idempotency.md"} {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		named := 0
		for _, found := range row.FindAllStringSubmatch(string(page), -1) {
			code, ok := grpclock.GRPCCodes[found[1]]
			if !ok {
				if found[2] != "–" {
					t.Errorf("%s: %s is no refusal over gRPC", name, found[1])
				}
				continue
			}
			named++
			var documented codes.Code
			if err := documented.UnmarshalJSON([]byte(`"` + strings.TrimSpace(found[2]) + `"`)); err != nil || documented != code {
				t.Errorf("%s: %s is %s, not %s (%v)", name, found[1], code, found[2], err)
			}
		}
		if named != len(grpclock.GRPCCodes) {
			t.Errorf("%s has %d of %d codes", name, named, len(grpclock.GRPCCodes))
		}
	}
}
