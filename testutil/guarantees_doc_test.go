package testutil_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// docGuarantees are the tests of each guarantee in docs/guarantees.md, by its words in bold.
var docGuarantees = map[string][]string{
	"One holder at a time":                               {"TestManyGoroutines_OneAtATime", "TestModel", "TestQuorum_OneHolderOfMany", "TestSimulation"},
	"No lock is lost in silence.":                        {"TestLoss_IsSignalledByTheDeadlineAndFinal", "TestLoss_SlowLogger", "TestDo_SaysWhenTheLockWasLost"},
	"Fencing tokens of a key strictly increase":          {"TestTokens_IncreaseInEveryOrder", "TestTokens_CounterExpired", "TestToken_IncreasesOverHandOvers", "TestQuorum_TokensIncrease"},
	"Only the holder changes its key.":                   {"TestBackend_Redis", "TestRelease_DrainsTheRenewal", "TestRelease_CompareAndDelete"},
	"Nothing stays held after an error.":                 {"TestAcquire_ContextEndsMidCall", "TestAcquire_ADoneContextNeverGetsALock", "TestLateCall_IsCleanedUp"},
	"Calls end at their deadline":                        {"TestNode_HungReturnsByTheDeadline", "TestQuorum_HungMajority"},
	"The caller's context is not blamed on the backend.": {"TestEnded_InLineIsNeverUnavailable", "TestUnavailable_KeepsItsCauses", "TestContext_EndIsNeverUnavailable"},
	"An outage is a slow call.":                          {"TestAcquire_OutageIsRetried", "TestAcquire_OutageWaitIsBounded", "TestSentinel_FailOver"},
	"Waiters are served in order":                        {"TestAcquire_IsFirstComeFirstServedInAProcess", "TestTurns_LongHolds", "TestTurns_CallerAtADistance"},
	"AcquireAny gets a key that is free.": {"TestAcquireAny_Model", "TestAcquireAny_OneKeyUnavailable", "TestAcquireAny_SealedAndOrphaned",
		"TestAcquireAny_NoneTooMany", "TestAcquireAny_FirstComeFirstServed", "TestAcquireAny_FairOnRedis"},
	"A wait that ends leaves nothing behind": {"TestAcquireAny_AbandonedWaits", "TestAcquireAny_WaitEnds"},
	"DoOnce runs once.":                      {"TestDoOnce_OneOfManyRuns", "TestDoOnce_LockLost", "TestDoOnce_SealFails", "TestDoOnce_Orphan"},
	"Every runs each slot once.":             {"TestEvery_Model", "TestEvery_OneRunPerSlot", "TestEvery_RunnerDies", "TestEvery_RunnerKilled", "TestEvery_Outage"},
	"At most WithMaxWaiters callers wait":    {"TestWithMaxWaiters_CountsExactly", "TestWithMaxWaiters_Race"},
	"An orphan is never free by itself.":     {"TestOrphan_IsNotFree", "TestOrphan_Adopt", "TestBackend_Redis", "TestQuorum_Backend"},
	"The log is not flooded.":                {"TestLogs_ManyLocksLost", "TestLogs_InFaults", "TestLogs_LossFoundAtRelease", "TestClose_FlushesTheLog"},
	"Ping connects and reports.":             {"TestPing_WarmsConnections", "TestPing_NamesNodesThatAreDown", "TestPing_HungNode"},
	"A held lock is cheap":                   {"TestCosts_HeldLock", "TestCosts_KeysLeaveNothingBehind"},
	"Every key in Redis has an expiry.":      {"TestKeys_AllExpire"},
	"A lock without a token is two commands": {"TestCommands_OfALock"},
	"Nobody waits for a hung node.":          {"TestRedisCluster_HungShard", "TestQuorum_HungMinority", "TestHealth_HungNodeIsExcluded"},
	"A quorum works while a majority works":  {"TestQuorum_HungMinority", "TestQuorum_LongRoundTrips", "TestQuorum_RollingRestartKeepsLock"},
	"With `Config.Replicas`, enough replicas have a lock, a renewal or a seal before the call returns.": {"TestReplicas_HaveEachLock", "TestReplicas_OneStopped", "TestReplicas_WaitNotAnswered", "TestReplicas_FailOver", "TestReplicas_EachSuccessWrites"},
	"Restarts of a quorum are safe.":        {"TestQuorum_RestartWithOldData", "TestQuorum_RestartBetweenClocks", "TestACL_RestartedNodeAbstains"},
	"The lock is acquired before BEGIN":     {"TestOrder_LockBeginCommitUnlock", "TestOrder_NoConnectionWhileLocking"},
	"An unknown COMMIT keeps the lock.":     {"TestCommitUnknown", "TestCommitUnknown_ErrorOfAProxy", "TestCommit_Outcomes"},
	"A lost lock rolls back.":               {"TestLost_BeforeCommit", "TestContext_EndsInManualTransaction", "TestBlock_Panics"},
	"A guard that cannot guard is an error": {"TestErrNotRegistered", "TestErrNoTransaction", "TestErrGuardTooLate", "TestTransaction_EndedByTheDatabase"},
	"Several keys are all acquired or none": {"TestGuards_TakenTogether", "TestTransaction_WithKeys"},
	"The database decides where it can.":    {"TestFenced_RefusesOlderHolders", "TestOnce_AtMostOnce", "TestDecrement", "TestVersion_StaleWritesFail"},
}

// Each guarantee of docs/guarantees.md names tests that exist.
func TestGuarantees_OnThePage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	var given []string
	for _, found := range regexp.MustCompile(`(?m)^- \*\*([^*]+)\*\*`).FindAllStringSubmatch(string(text), -1) {
		given = append(given, found[1])
		if _, known := docGuarantees[found[1]]; !known {
			t.Errorf("docs/guarantees.md promises %q; name its tests here", found[1])
		}
	}
	for words, tests := range docGuarantees {
		if !slices.Contains(given, words) {
			t.Errorf("%q is not in docs/guarantees.md", words)
		}
		for _, test := range tests {
			if !hasTest(t, "core", test) && !hasTest(t, filepath.Join("core", "redisbackend"), test) && !hasTest(t, "gormlock", test) {
				t.Errorf("%q has no test %s", words, test)
			}
		}
	}
}
