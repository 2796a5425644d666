package idempotency_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// rules are the rules of docs/idempotency, by topic, and the tests that prove them.
var rules = map[string][]string{
	"1 form of the key":      {"TestKey_InAHeader"},
	"2 missing key, methods": {"TestKey_MissingKey", "TestKey_Head", "TestFate_UnmatchedRoutesPass"},
	"3 what a key belongs to": {"TestKey_OfPrincipals", "TestKeys_ServicesAndHosts", "TestScope_NamesThePart", "TestScope_SpellingsOfAHost",
		"TestScope_ThreeInstances", "TestScope_ByFunctionOnTwoRoutes", "TestScope_DerivedKeys", "TestClients_Node", "TestClients_Java"},
	"4 principal and credentials":   {"TestPrincipal_BasicAuthUser", "TestPrincipal_UserThatIsNoName", "TestPrincipal_CredentialsChanged", "TestPrincipal_ClientCertificates", "TestPrincipal_WarnsOncePerRoute", "TestByKey_BadRequests"},
	"5 first request":               {"TestFirstRequest_Runs"},
	"6 replay":                      {"TestRetry_ReplayAfterCompletion", "TestRouter_ServeMux", "TestRouter_Gin"},
	"7 retry while the first runs":  {"TestRetry_RetryWhileTheFirstRuns", "TestRetry_WaitForTheAnswer", "TestRetry_WaitIsWoken", "TestRetry_WaitForAFreedClaim"},
	"8 other payload":               {"TestRetry_OtherPayload"},
	"9 refusals":                    {"TestRetry_Problem", "TestRetry_ProblemWriter"},
	"10 fingerprint":                {"TestFingerprint_WhatCounts", "TestFingerprint_PathCounts", "TestFingerprint_Multipart", "TestFingerprint_FormParsedBefore", "TestBody_ReadOutside"},
	"11 retention":                  {"TestRetry_Retention", "TestRetainFor_OneRequest"},
	"12 requests at once":           {"TestRetry_ConcurrentRequests", "TestManyRequests_OneEffect"},
	"13 what becomes of the key":    {"TestFate_WhatIsRecorded", "TestFate_Panic", "TestFate_RunAgain", "TestNothingDone_FreesTheKey", "TestDecide_ByStatusAndHeader"},
	"14 headers":                    {"TestHeaders_Recorded", "TestHeaders_ForgedHeaders", "TestHeaders_FromGoroutines"},
	"15 tombstones, seal then send": {"TestTombstone_TooLarge", "TestTombstone_Flush", "TestTombstone_Hijack", "TestTombstone_SealThenSend", "TestHijack_HTTP2LeavesTheKey"},
	"16 errors left to others":      {"TestErrors_LeftToAnOuterWriter", "TestErrors_ErrorAndStatus", "TestErrors_RenderError"},
	"17 answers without a body":     {"TestAnswer_NoBodyIsWritten"},
	"18 client hangs up":            {"TestClient_ClientHangsUp", "TestMaxRun_EndsTheContext", "TestDeadline_OfTheServerStays", "TestShutdown_WaitsAndCancels"},
	"19 duplicates, lost claims":    {"TestClaim_DuplicatesLeaveTheOwnerAlone", "TestClaim_LostClaim", "TestClaim_LossCancelsTheRequest"},
	"20 request body":               {"TestBody_RequestBody", "TestBody_TwoReaders", "TestBody_ExpectContinue", "TestBody_SlowAndLimitedBody"},
	"21 response writer":            {"TestWriter_SeesTheSame", "TestWriter_Answers", "TestWriter_Pusher", "TestWriter_Trailers"},
	"22 order of middlewares":       {"TestOrder_OtherOrders", "TestOrder_AccessRevoked", "TestOrder_CompressionOutside", "TestOrder_DecidedAtTheFirstByte"},
	"23 store down before":          {"TestOutage_StoreDownBeforeTheHandler", "TestOutage_FailOpenForNobody"},
	"24 store down after":           {"TestOutage_StoreDownAfterTheHandler"},
	"33 bounds":                     {"TestJunkKeys_LeaveNothing", "TestNothingStaysForEver", "TestBody_SlowAndLimitedBody"},
	"unknown outcomes":              {"TestFate_Panic", "TestRecover_Answers", "TestRecover_TwoRetriesAtOnce"},
}

func TestRules_HaveTests(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for _, folder := range []string{".", "../ginlock"} {
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range parsed.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(fn.Name.Name, "Test") {
					names[fn.Name.Name] = true
				}
			}
		}
	}
	for rule, tests := range rules {
		for _, name := range tests {
			if !names[name] {
				t.Errorf("rule %q: there is no %s", rule, name)
			}
		}
	}
}
