package testutil_test

import (
	"go/doc/comment"
	"strings"
	"testing"
)

// guarantee is one that the text of a package gives, by its first words, and the tests that break when it does not hold.
type guarantee struct {
	begins string
	tests  []string
}

// guarantees are in the order of the text under "Guarantees". Those of core are in docs/guarantees.md,
// and idempotency/rules_test.go names the tests of docs/idempotency.md.
var guarantees = map[string][]guarantee{
	"gormlock/stock": {
		{"Nothing is oversold", []string{"TestSale_Books", "TestSale_Processes", "TestSale_Killed", "TestSale_Random", "TestSale_Model", "TestSale_Overflow"}},
		{"Every error of Sell but ErrCommitUnknown", []string{"TestSale_CommitUnknown", "TestSale_CommitRefused", "TestSale_DatabaseDown",
			"TestSale_RolledBackChildren", "TestSale_Random"}},
		{"Each call has its own result", []string{"TestSale_RefusedOrders", "TestSale_HookPanics", "TestSale_SwallowedInsert", "TestSale_SharedParent"}},
		{"ErrDuplicate means", []string{"TestSale_RepeatBehindFailed", "TestSale_OtherUnique"}},
		{"A Decrement never takes more", []string{"TestDecrement_CommitUnknown", "TestDecrementAll_Releases"}},
	},
	"gormlock/optimistic": {
		{"A write of a model that was read writes nothing if", []string{"TestVersion_StaleWritesFail", "TestVersion_Delete", "TestVersion_NoLostUpdates"}},
		{"Several rows are written all or none", []string{"TestVersion_Batches", "TestVersion_BatchInBlock", "TestVersion_SaveSlice"}},
		{"Other writes by the model raise", []string{"TestVersion_ByConditions", "TestVersion_SoftDelete"}},
		{"A rollback takes the new versions back", []string{"TestVersion_RolledBack", "TestVersion_ReturnedAsNewModels"}},
		{"A write that cannot compare versions is an error", []string{"TestVersion_UpsertRefused", "TestVersion_ChildRefused", "TestVersion_Refused"}},
	},
	"core/sqlbackend": {
		{"A key has one holder at a time", []string{"TestConformance", "TestIsolation_OneHolderAtATime", "TestClockOfTheDatabase"}},
		{"Fencing tokens of a key increase", []string{"TestConformance", "TestPurge"}},
		{"Behind a proxy", []string{"TestReplica_ReadWriteSplit", "TestReplica_Stale"}},
		{"Nothing stays held", []string{"TestLateInsertIsCleanedUp", "TestLateAnswerLeavesNoOrphan", "TestCloseCleansUp"}},
	},
	"gormlock": {
		{"The lock is acquired before BEGIN", []string{"TestOrder_LockBeginCommitUnlock", "TestOrder_NoConnectionWhileLocking"}},
		{"If the outcome of COMMIT is unknown", []string{"TestCommitUnknown", "TestCommitUnknown_ErrorOfAProxy", "TestCommit_Outcomes"}},
		{"If the lock is lost or the context ends before COMMIT", []string{"TestLost_BeforeCommit", "TestContext_EndsInManualTransaction"}},
		{"Panics in blocks and hooks", []string{"TestBlock_Panics", "TestHooks_PanicOrFail"}},
		{"If the database ends a guarded transaction", []string{"TestTransaction_EndedByTheDatabase", "TestEnded_WhileRowsAreRead",
			"TestTransaction_DDL", "TestOnce_Deadlock"}},
		{"Several keys are all acquired or none", []string{"TestGuards_TakenTogether", "TestTransaction_WithKeys"}},
		{"A guard that cannot guard is an error", []string{"TestErrNotRegistered", "TestErrNoTransaction", "TestErrGuardTooLate",
			"TestErrUnmanagedTransaction", "TestNew_UnknownDialect", "TestDryRun_IsRefused", "TestAssociation_GuardWithoutTransaction"}},
		{"With Fenced", []string{"TestFenced_RefusesOlderHolders", "TestFenced_PausedHolder", "TestFenced_FirstStatement"}},
		{"AfterCommit functions run once", []string{"TestAfterCommit", "TestAfterCommit_Panic"}},
		{"Once commits at most once", []string{"TestOnce_AtMostOnce", "TestOnce_CrashBeforeTheAnswer", "TestOnce_RepeatsGetTheFirstResult",
			"TestOnce_DeadlockWhileReading"}},
		{"On SQLite, a guarded transaction", []string{"TestCommitRejected_DeferredConstraint"}},
	},
}

var line = strings.NewReplacer("\n", " ", "[", "", "]", "")

// promised are the items under a heading of a package's text.
func promised(text, heading string) (items []string) {
	var p comment.Parser
	under := false
	for _, block := range p.Parse(text).Content {
		switch b := block.(type) {
		case *comment.Heading:
			under = plain(b.Text) == heading
		case *comment.List:
			for _, item := range b.Items {
				if para, ok := item.Content[0].(*comment.Paragraph); ok && under {
					items = append(items, line.Replace(plain(para.Text)))
				}
			}
		}
	}
	return items
}

func plain(text []comment.Text) string {
	var b strings.Builder
	for _, t := range text {
		switch t := t.(type) {
		case comment.Plain:
			b.WriteString(string(t))
		case comment.Italic:
			b.WriteString(string(t))
		case *comment.Link:
			b.WriteString(plain(t.Text))
		case *comment.DocLink:
			b.WriteString(plain(t.Text))
		}
	}
	return b.String()
}

// Each package says what it guarantees and what not, and each guarantee has its test.
func TestGuarantees_EachHasItsTest(t *testing.T) {
	for folder, want := range guarantees {
		t.Run(folder, func(t *testing.T) { checkGuarantees(t, folder, want) })
	}
}

func checkGuarantees(t *testing.T, folder string, want []guarantee) {
	g := readGodoc(t, folder)
	given := promised(g.Doc, "Guarantees")
	if len(promised(g.Doc, "Does not guarantee")) < 3 {
		t.Errorf("%s hardly says what it does not guarantee", folder)
	}
	for i, text := range given {
		if i >= len(want) || !strings.HasPrefix(text, want[i].begins) {
			t.Errorf("%s guarantees something that no test is named for here: %q", folder, text)
			break
		}
	}
	if len(given) < len(want) {
		t.Errorf("%s gives %d guarantees, and %d are named here", folder, len(given), len(want))
	}
	for _, one := range want {
		for _, test := range one.tests {
			if !hasTest(t, folder, test) {
				t.Errorf("%s: %q has no test %s", folder, one.begins, test)
			}
		}
	}
}
