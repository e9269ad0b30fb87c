package scenario_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A table lists the proofs of some rows: the scenarios that name the row, and tests.
type table struct {
	head  string
	ids   []scenario.Name // that it must have, in this order
	what  map[scenario.Name]string
	tests map[scenario.Name][]string // see testCell
}

// ids are the rows of a letter with these numbers.
func ids(letter string, numbers ...int) (rows []scenario.Name) {
	for _, n := range numbers {
		rows = append(rows, scenario.Name(fmt.Sprint(letter, n)))
	}
	return rows
}

// The soak (B17), the rules for dependencies (S7) and for old mistakes (B20) are
// rules for releases and for changes: no test shows them. The known issues that are left out
// are about speed and pages, or a row of another table.
var (
	criteria = table{
		head: "criterion", ids: slices.Concat(ids("B", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19), ids("S", 1, 2, 3, 4, 5, 6, 8, 9)),
		what: criterionWords, tests: criterionTests,
	}
	issues = table{head: "issue", ids: ids("P", 1, 2, 3, 4, 5, 7, 8, 9, 10, 14, 15, 16, 17, 20, 21, 23), what: issueWords, tests: issueTests}
)

var criterionWords = map[scenario.Name]string{
	"B1":  "crash reported in 250 ms, 1 s worst",
	"B2":  "silence reported within 3 s",
	"B3":  "loss and pauses remove no node",
	"B4":  "an isolated node harms no other",
	"B5":  "each change is reported exactly once",
	"B6":  "a thousand restarts, nothing of old incarnations",
	"B7":  "a paused writer writes nothing later",
	"B8":  "every call ends, with its errno",
	"B9":  "bytes are exact over bad networks",
	"B10": "fences and signals never lie",
	"B11": "a fault leaves other pairs alone",
	"B12": "whole 5 s after a partition",
	"B13": "50 nodes join within 5 s",
	"B14": "nothing leaks over 10 000 connections",
	"B15": "each damage to the state is noticed",
	"B16": "tables of IDs and ports are linearizable",
	"B18": "one seed, one history",
	"B19": "bugs put in on purpose are caught",
	"S1":  "strangers see nothing and stay out",
	"S2":  "no node passes for another",
	"S3":  "hostile local applications harm only themselves",
	"S4":  "decoders allocate within their budget",
	"S5":  "low ports are for administrators",
	"S6":  "containers without privilege, root read-only",
	"S8":  "secrets stay in their files",
	"S9":  "100 certificates, 10 keys, no reset",
}

var criterionTests = map[scenario.Name][]string{
	"B1": {"membership/verdict TestCrashIsReported", "internal/lab/sim TestScale", "internal/test/e2e TestKilledNodesAreRemovedOnce"},
	"B2": {"membership TestSilentLossIsKnownWithinTheBoundOfEachProfile", "membership/verdict TestSilenceIsReportedAtItsBound", "internal/lab/sim TestScale"},
	"B3": {"membership TestLossDoesNotRemove", "membership/verdict TestShortPausesChangeNothing", "internal/test/e2e TestShortPauseOfANodeIsInvisible"},
	"B4": {"membership/verdict TestReturningNodeHarmsNobody"},
	"B5": {"internal/lab/sim TestChurn SIM_CHANGES=1000000"},
	"B6": {"membership/verdict TestFastRestartIsSeenByAll", "internal/test/e2e TestQuickRestartsAreRemovalsAndReturns"},
	"B7": {"internal/lab/sim TestZombies SIM_SEEDS=20000", "internal/test/e2e TestLongPauseOfANodeIsOneRemovalAndOneReturn"},
	"B8": {"fabric/fabrictest TestCrashAtEveryStepOfTheEngine", "fabric/fabrictest TestCrashAtEveryStepOverSockets", "internal/engine TestNodeLossEndsEverythingBeforeItIsReported",
		"internal/test/e2e TestKilledNodesAreRemovedOnce", "internal/test/e2e TestEveryCallEndsAtEverySilentLoss"},
	"B9": {"internal/transport/quic TestBytesAreExactOverABadNetwork", "internal/faults/inject TestQUICOverBadSockets",
		"internal/engine TestManyMessagesAreExactOverABadNetwork VOLUME=10000000", "internal/engine TestManyTransfersAreExactOverABadNetwork VOLUME_RMA=100000000000"},
	"B10": {"internal/lab/sim TestFenceCuts SIM_SEEDS=50", "internal/engine TestRandomProgramsUnderFaults",
		"internal/engine TestRandomProgramsOverQUIC"},
	"B11": {"internal/lab/sim TestOneOfFifty", "internal/test/e2e TestStoppedReceiverBlocksOnlyItsOwnConnection"},
	"B12": {"membership TestSplitHeals", "membership/verdict TestSplitHeals"},
	"B13": {"membership TestJoinStorm", "membership/verdict TestJoinStormGivesDistinctIDs", "membership/verdict TestStartMakesAllAware"},
	"B14": {"internal/engine TestCloseStorm", "internal/engine TestManyConnectionsLeaveNoMemory",
		"internal/test/e2e TestKilledApplicationsLeaveNothingBehind"},
	"B15": {"membership/state TestEveryDamageToTheLeaseTableIsNoticed", "membership/state TestEveryDamageToANodeIsNoticed",
		"membership/state TestEveryDamageToTheHostsFilesIsRefused", "internal/test/e2e TestDamagedStateNeverLeadsToAnOlderIncarnation"},
	"B16": {"internal/lab/check TestPortTableIsLinearizable -linear=1000", "internal/lab/check TestLeaseTableIsLinearizable -linear=1000",
		"internal/lab/check TestModelsOfTablesFindFaults"},
	"B18": {"internal/lab/sim TestSameSeedSameHistory", "membership/verdict TestSameSeedSameRun"},
	"B19": {"internal/lab/sim/mutants TestEveryMutantIsCaught MUTANTS=all", "internal/lab/check TestEveryMutationIsCaught"},
	"S1": {"internal/test/e2e TestTheWireRevealsNothing", "internal/transport/quic TestTheWireShowsNothing", "internal/test/hostile TestCertificatesOfStrangers",
		"internal/test/hostile TestStrangersOnEveryPort", "internal/test/hostile TestManyPacketsOfStrangersLeaveNothing"},
	"S2": {"internal/test/hostile TestClaimsOnTheControlPort", "internal/test/hostile TestHelloThatLies", "internal/test/hostile TestLeasesThatAreNot",
		"membership TestNobodyPassesForAnotherIncarnation"},
	"S3": {"internal/shm TestCheckRefusesHostileDescriptors", "internal/shm TestCheckRefusesHugePages", "internal/shm TestFaultsAreErrors",
		"internal/attach/client TestWrongMemoryIsRefused", "internal/attach/client TestGarbageEndsTheSession", "internal/attach/client TestHolesInWindowMemory",
		"internal/ring TestCorruptionIsFound", "internal/attach/client TestRingsChangeWhileTheyAreRead",
		"internal/attach/client TestEpochsCannotBeWrittenByTheApplication",
		"internal/test/hostile TestDescriptorsByTheHundred", "internal/test/hostile TestQuotas", "internal/test/hostile TestFloodOfAsksForPaths"},
	"S4": {"internal/test/hostile TestDecodersStayInTheirBudget", "internal/test/hostile TestDecodersOfTextStayInTheirBudget",
		"internal/attach/proto TestDecoderStaysInItsBudget", "internal/transport/stream TestDecodersStayInTheirBudget",
		"membership/control TestDecoderStaysInItsBudget", "membership/state TestReadBoltStaysInItsBudget"},
	"S5": {"internal/test/hostile TestUnprivilegedProcess", "internal/test/hostile TestRootOfANamespaceIsNoAdmin",
		"internal/daemon TestPrivilegedPortsAreForConfiguredUsers"},
	"S6": {"internal/test/deploytest TestCompose", "internal/test/deploytest TestImages", "deploy/check TestEveryContainerIsHardened"},
	"S8": {"internal/test/e2e TestSecretsAreInNoProcess", "internal/test/hostile TestSecretsStayInTheirFiles", "membership/trust TestSecretsDoNotPrint"},
	"S9": {"membership TestManyRotationsUnderTraffic", "membership TestCertificatesRotateUnderTraffic", "membership TestGossipKeysRotateUnderTraffic"},
}

var issueWords = map[scenario.Name]string{
	"P1":  "a dead peer ends every call",
	"P2":  "a dead peer is noticed soon",
	"P3":  "closing never hangs, storms included",
	"P4":  "a restarted peer is a new incarnation",
	"P5":  "containers share memory with default flags",
	"P7":  "too little memory is a named error",
	"P8":  "killed processes leave nothing named",
	"P9":  "errors name call, ends and cause",
	"P10": "one bad node slows no other",
	"P14": "crossing connects end in one link",
	"P15": "busy or paused nodes stay members",
	"P16": "address moves, copies of a node",
	"P17": "no node is needed for ever",
	"P20": "idle nodes hardly use a processor",
	"P21": "come and go without leaks",
	"P23": "applications survive their fabricd and peers",
}

var issueTests = map[scenario.Name][]string{
	"P1": {"fabric/fabrictest TestCrashAtEveryStepOfTheEngine", "fabric/fabrictest TestCrashAtEveryStepOverSockets", "internal/test/e2e TestNodesCrashAtStepsOfTheProtocol", "internal/engine TestNodeLossEndsEverythingBeforeItIsReported",
		"internal/test/e2e TestKilledNodesAreRemovedOnce", "internal/test/e2e TestEveryCallEndsAtEverySilentLoss"},
	"P2": {"membership TestSilentLossIsKnownWithinTheBoundOfEachProfile", "membership/verdict TestCrashIsReported"},
	"P3": {"internal/engine TestCloseStorm", "internal/test/e2e TestTerminatedNodesLeave"},
	"P4": {"internal/core TestCheckHelloRefusesEveryOtherIncarnation", "internal/transport/quic TestHeartbeatToARestartedPeerResets",
		"membership TestInstantRestartIsSeenAsOne", "internal/test/e2e TestQuickRestartsAreRemovalsAndReturns"},
	"P5": {"internal/test/deploytest TestCompose"},
	"P7": {"internal/test/deploytest TestCompose", "internal/shm TestMemoryThatIsMissingIsAnError"},
	"P8": {"internal/test/deploytest TestCompose", "internal/test/e2e TestKilledApplicationsLeaveNothingBehind"},
	"P9": {"fabric TestOpErrorSaysWhatWhoAndWhy", "fabric TestHintsSayWhatToDo", "fabric TestEveryErrorNamesItsEndsAndItsCause",
		"internal/status TestEveryCodeHasItsOwnText"},
	"P10": {"internal/lab/sim TestOneOfFifty", "internal/test/e2e TestStoppedReceiverBlocksOnlyItsOwnConnection"},
	"P14": {"internal/engine TestRandomCrossings CROSSINGS=100000", "internal/engine TestCrossingDialsEndInOneLink"},
	"P15": {"internal/test/e2e TestShortPauseOfANodeIsInvisible", "internal/test/e2e TestLongPauseOfANodeIsOneRemovalAndOneReturn"},
	"P16": {"membership TestNodeThatComesBackElsewhereKeepsItsID", "membership TestClonedStateDirectoryIsRefused"},
	"P17": {"membership TestWithoutAHostMembersDecideAlone", "membership/verdict TestHostLossIsReportedAndTheRestGoesOn",
		"membership/verdict TestALostLeaseTableGivesEveryIDBackAboveItsGenerations", "internal/test/e2e TestKilledNodesAreRemovedOnce"},
	"P20": {"membership/verdict TestIdleClusterTicksWithItsHeartbeats"},
	"P21": {"internal/lab/sim TestHoursOfComingAndGoingLeaveNothing SIM_HOURS=24", "internal/engine TestManyConnectionsLeaveNoMemory", "internal/test/e2e TestKilledApplicationsLeaveNothingBehind"},
	"P23": {"internal/attach/client TestKilledNodeEndsBlockedCalls", "internal/attach/client TestApplicationLearnsThatItsNodeEnds",
		"internal/attach/client TestACallBesideTheEndOfTheNodeIsReset", "internal/shm TestFaultsAreErrors",
		"internal/test/hostile TestFramesThatBreakTheRules", "internal/test/hostile TestRandomBytesInsideALink"},
}

// shownBy returns the proofs of a row, as a cell of a table: scenarios and tests.
func shownBy(t *testing.T, row scenario.Name, scenarios, tests []string) string {
	cells := append(slices.Clone(scenarios), testCells(tests)...)
	if len(cells) == 0 {
		t.Errorf("nothing shows %s", row)
	}
	return strings.Join(cells, ", ")
}

// write returns the table as it is in the README.
func (tab table) write(t *testing.T) string {
	by := scenariosOf(t)
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | what | shown by |\n|---|---|---|\n", tab.head)
	for _, row := range tab.ids {
		if n := len(strings.Fields(tab.what[row])); n < 3 || n > 8 {
			t.Errorf("%s is %q: want three to eight words", row, tab.what[row])
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row, tab.what[row], shownBy(t, row, by[row], tab.tests[row]))
	}
	return b.String()
}

// testCells writes tests, each "package Test" or "package Test setting": the setting
// makes the test as long as the row wants it.
func testCells(tests []string) (cells []string) {
	for _, test := range tests {
		words := strings.Fields(test)
		cell := "`" + words[0] + " " + words[1] + "`"
		if len(words) == 3 {
			cell += " (in full with `" + words[2] + "`)"
		}
		cells = append(cells, cell)
	}
	return cells
}

// TestTablesHoldTogether finds rows that no table has, so that their text is never
// shown.
func TestTablesHoldTogether(t *testing.T) {
	all := slices.Concat(rows(), criteria.ids, issues.ids)
	for _, named := range [][]scenario.Name{
		slices.Collect(maps.Keys(inTests)), slices.Collect(maps.Keys(criteria.what)), slices.Collect(maps.Keys(criteria.tests)),
		slices.Collect(maps.Keys(issues.what)), slices.Collect(maps.Keys(issues.tests)),
	} {
		for _, row := range named {
			if !slices.Contains(all, row) {
				t.Errorf("%s is in no table", row)
			}
		}
	}
}

// TestTestsOfRowsExist holds the tables to the tree.
func TestTestsOfRowsExist(t *testing.T) {
	for _, tests := range []map[scenario.Name][]string{inTests, criteria.tests, issues.tests} {
		for _, row := range slices.Sorted(maps.Keys(tests)) {
			for _, test := range tests[row] {
				if err := exists(test); err != nil {
					t.Errorf("%s: %v", row, err)
				}
			}
		}
	}
}

// exists looks for a test, as testCells has it, and for the name of its setting.
func exists(test string) error {
	words := strings.Fields(test)
	if len(words) < 2 || len(words) > 3 {
		return fmt.Errorf("%q is no test", test)
	}
	names, err := filepath.Glob(filepath.Join("../../..", words[0], "*_test.go"))
	if err != nil {
		return err
	}
	var all []byte
	for _, file := range names {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		all = append(all, text...)
	}
	if !bytes.Contains(all, []byte("\nfunc "+words[1]+"(t *testing.T)")) {
		return fmt.Errorf("there is no test %s in %s", words[1], words[0])
	}
	if len(words) == 3 {
		name, _, _ := strings.Cut(strings.TrimPrefix(words[2], "-"), "=")
		if !bytes.Contains(all, []byte(`"`+name+`"`)) {
			return fmt.Errorf("nothing in %s reads %s", words[0], name)
		}
	}
	return nil
}

// TestEveryCriterionHasAFigure looks for each criterion once in the page of the results.
func TestEveryCriterionHasAFigure(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/scenarios/CRITERIA.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, criterion := range criteria.ids {
		if n := bytes.Count(text, []byte("\n| "+string(criterion)+" |")); n != 1 {
			t.Errorf("CRITERIA.md has %d lines of %s, want 1", n, criterion)
		}
	}
	if lines := bytes.Count(text, []byte("\n| ")) - 1; lines != len(criteria.ids) {
		t.Errorf("CRITERIA.md has %d criteria, want %d", lines, len(criteria.ids))
	}
}

// TestWhatWasFoundIsShown holds the page of bugs to the tree: every line names a test
// or a scenario, and all of them are there.
func TestWhatWasFoundIsShown(t *testing.T) {
	const dir = "../../../deploy/scenarios"
	text, err := os.ReadFile(filepath.Join(dir, "FOUND.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`([a-z0-9/]+ Test[A-Za-z]+)`|\\]\\(([a-z0-9/-]+\\.yaml)\\)")
	bugs := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| found by") {
			continue
		}
		bugs++
		cells := strings.Split(line, " | ")
		all := name.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(cells) != 4 || len(all) == 0 {
			t.Errorf("want four cells, and a test or a scenario in the last one: %s", line)
		}
		for _, m := range all {
			err := error(nil)
			if m[1] != "" {
				err = exists(m[1])
			} else {
				_, err = os.Stat(filepath.Join(dir, m[2]))
			}
			if err != nil {
				t.Errorf("%v: %s", err, line)
			}
		}
	}
	if bugs < 10 {
		t.Errorf("%d bugs are listed", bugs)
	}
}
