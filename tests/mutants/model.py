"""A planted bug, and the checks that must notice it. Nothing here runs anything."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PRODUCT = "operator/tandem/"

# Those without Spark.
_BLOCK_TESTS = (
    "records",
    "files",
    "stitch",
    "log_scenarios",
    "log_writer",
    "log_compaction",
    "boundaries",
    "base_history",
    "log_integrity",
    "bounds_of_reads",
    "connector_reader",
    "log_made_again",
    "key_columns",
    "log_refused",
    "log_cleaning",
    "beside",
)


class Check(Enum):
    """What looks for bugs, cheapest first. Each is a command for Python, run in the tree.

    Search and simulator are generic: they know no mutant, only what rows there must be.
    """

    SEARCH = (
        "the search over small histories",
        "-m reconcile.search --small 40000 --random 20000 --first",
    )
    EDITS = (
        "the search without deletion vectors",
        "-m reconcile.search --without-vectors 4000 --first",
    )
    SIMULATOR = ("the simulator", "-m simulator --seeds 0:400 --seconds 60")
    CRASHES = (
        "a crash at every point",
        "-m pytest -q -x -p no:cacheprovider -m not(matrix) tests/simulator/test_crash_points.py",
    )
    DRIVERS = (
        "two drivers of one operation",
        "-m pytest -q -x -p no:cacheprovider -m not(matrix) tests/simulator/test_two_drivers.py "
        "tests/simulator/test_ended_before_start.py tests/simulator/test_markers.py "
        "tests/simulator/test_zombies.py",
    )
    BATCHES = (
        "a compaction in batches",
        "-m pytest -q -x -p no:cacheprovider -m not(matrix) tests/simulator/test_batches.py",
    )
    COPIES = (
        "the tests of copied row groups",
        "-m pytest -q -x -p no:cacheprovider tests/rowgroups/test_copied_bins.py",
    )
    RULES = (
        "the tests of the rules",
        "-m pytest -q -x -p no:cacheprovider tests/reconcile --deselect "
        "tests/reconcile/test_search.py",
    )
    ENGINE = ("the tests of the engine", "-m pytest -q -x -p no:cacheprovider tests/operations")
    HEIRS = (
        "the tests of heirs",
        "-m pytest -q -x -p no:cacheprovider tests/operations/test_heirs.py",
    )
    PLAIN = (
        "the tests of tables without deletion vectors",
        "-m pytest -q -x -p no:cacheprovider tests/tables/test_without_vectors.py "
        "tests/tables/test_statements_without_vectors.py tests/tables/test_spelled_paths.py",
    )
    EXCLUSIVE = (
        "the tests of exclusive attempts",
        "-m pytest -q -x -p no:cacheprovider tests/operations/test_step_stops.py "
        "tests/tables/test_exclusive.py",
    )
    LOCKS = (
        "the tests of locks",
        "-m pytest -q -x -p no:cacheprovider tests/locks/test_lock_codec.py "
        "tests/locks/test_locks_in_process.py",
    )
    TIMELINE = (
        "the tests of segments and plans",
        "-m pytest -q -x -p no:cacheprovider tests/timeline tests/planning",
    )
    SERVING = (
        "the tests of loaders",
        "-m pytest -q -x -p no:cacheprovider tests/timeline/test_serving.py "
        "tests/timeline/test_stand_ins.py tests/timeline/test_changes.py "
        "tests/planning/test_adjacency.py",
    )
    AUTOMATIC = (
        "the tests of automatic planning",
        "-m pytest -q -x -p no:cacheprovider tests/planning/test_retention.py "
        "tests/planning/test_chunks.py",
    )
    CLEANING = (
        "the tests of cleaning",
        "-m pytest -q -x -p no:cacheprovider tests/planning/test_cleaning.py "
        "tests/operations/test_clean.py",
    )
    LOG = (
        "the tests of the log",
        "-m pytest -q -x -p no:cacheprovider tests/delta/test_log.py "
        "tests/delta/test_put_commit.py tests/delta/test_replay.py",
    )

    ASSIGNMENT = (
        "the tests of assigning shards",
        "-m pytest -q -x -p no:cacheprovider tests/index/test_assignment.py "
        "tests/index/test_assignments.py tests/index/test_assignment_histories.py",
    )
    INDEX = (
        "the tests of entries and certain numbers",
        "-m pytest -q -x -p no:cacheprovider tests/index/test_entries.py "
        "tests/index/test_certain_numbers.py tests/pruning/test_per_file.py",
    )
    ROW_GROUPS = (
        "the tests of row groups",
        "-m pytest -q -x -p no:cacheprovider tests/index/test_row_groups.py",
    )
    INDEX_SERVER = (
        "the tests of the index server",
        "-m pytest -q -x -p no:cacheprovider tests/index/test_server.py",
    )
    SHARDS = (
        "the tests of shards",
        "-m pytest -q -x -p no:cacheprovider tests/index/test_shards.py "
        "tests/index/test_table_shards.py",
    )
    REPLIES = (
        "the tests of replies of executors",
        "-m pytest -q -x -p no:cacheprovider tests/index/test_spread_lies.py",
    )
    EXECUTORS = (
        "the scenarios of executors",
        "-m pytest -q -x -p no:cacheprovider tests/index/test_spread_scenarios.py",
    )
    EXECUTORS_FAIL = (
        "the tests of executors that fail",
        "-m pytest -q -x -p no:cacheprovider tests/index/test_spread_failures.py",
    )
    REPLACES = (
        "the tests of replaces",
        "-m pytest -q -x -p no:cacheprovider tests/pruning/test_scope.py "
        "tests/tables/test_replace.py",
    )
    HISTORIES = (
        "random histories of a log of blocks",
        "-m pytest -q -x -p no:cacheprovider tests/mergelog/test_search.py "
        "tests/mergelog/test_records.py",
    )
    BLOCKS = (
        "the tests of the log of blocks",
        "-m pytest -q -x -p no:cacheprovider "
        + " ".join(f"tests/mergelog/test_{name}.py" for name in _BLOCK_TESTS),
    )

    def __init__(self, title: str, command: str) -> None:
        self.title = title
        self.command = command.split()

    def only(self, test: str) -> list[str]:
        """The command for one of its tests."""
        return ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small patch: in `file`, below the product's package or in `examples/`, `old` becomes
    `new`.

    `old` occurs there exactly once. `breaks` names the invariant or the line of a rule table,
    `precedent` who shipped a bug of the kind, if it is known.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    checks: tuple[Check, ...]
    precedent: str = ""

    @property
    def path(self) -> str:
        return self.file if self.file.startswith("examples/") else PRODUCT + self.file

    def applied(self, text: str) -> str:
        """The file's text with the bug in it. Raises ValueError if it no longer fits."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.path} has its text {found} times, expected once")
        return text.replace(self.old, self.new)
