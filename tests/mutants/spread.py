"""Bugs in shards, in what executors reply, and in who is asked."""

from __future__ import annotations

from mutants.model import Check, Mutant

_SHARDS = (Check.SHARDS,)
_REPLIES = (Check.REPLIES,)
_SCENARIOS = (Check.EXECUTORS,)
_SERVER = "index/server/"
_MESSAGES = _SERVER + "executor_messages.py"
_COORDINATOR, _REGISTRY = _SERVER + "coordinator.py", _SERVER + "registry.py"

SPREAD = (
    Mutant(
        "spread-segment-moves",
        "a segment keeps its shard while it lives; I-47",
        _SERVER + "shards.py",
        "        numbers[used] = self._map.of(segments[used])\n",
        "",
        _SHARDS,
    ),
    Mutant(
        "spread-shard-without-limit",
        "a new segment joins the last shard only if there is room",
        _SERVER + "shards.py",
        "room = shard_size - held.get(last, 0) if keys else -1",
        "room = shard_size if keys else -1",
        _SHARDS,
    ),
    Mutant(
        "spread-one-key-twice",
        "the key of a shard is never that of two",
        _SERVER + "shards.py",
        "np.flatnonzero(np.isin(new, list(self.named))).tolist():",
        "():",
        _SHARDS,
    ),
    Mutant(
        "spread-empty-shard-stays",
        "a shard without segments is dropped; I-50",
        _SERVER + "shards.py",
        "        self._map = self._map.without(gone)\n",
        "",
        _SHARDS,
    ),
    Mutant(
        "spread-unknown-size-is-none",
        "shards of unknown size go round; X15",
        _SERVER + "shards.py",
        "                sizes[number] = None\n",
        "                sizes[number] = 0\n",
        _SHARDS,
    ),
    Mutant(
        "spread-loaded-again-is-not-known",
        "a table that was evicted and loaded again is narrowed again",
        _SERVER + "shards.py",
        "return view.version < self._version or (view.version == self._version and known)",
        "return view.version <= self._version",
        _SHARDS,
    ),
    Mutant(
        "spread-shard-twice",
        "a reply names each file once; X-a",
        _MESSAGES,
        "    if len(places) != files.num_rows or (places != np.arange(len(places))).any():\n",
        "    if len(set(places.tolist())) > files.num_rows:\n",
        _REPLIES,
    ),
    Mutant(
        "spread-answer-of-two-versions",
        "a reply is of the version that was asked; X-a",
        _MESSAGES,
        "{question.of.version}",
        "",
        _REPLIES,
    ),
    Mutant(
        "spread-reply-of-other-files",
        "a reply is of the files that were asked; X-c",
        _MESSAGES,
        "    if reply.asked != digest(asked, files):\n",
        "    if not reply.asked:\n",
        _REPLIES,
    ),
    Mutant(
        "spread-vector-forgotten",
        "no row is counted where a vector may hide it; X-d",
        "index/narrowing.py",
        "counted = (match == GroupMatch.ALL) & (dead == 0)[owner]",
        "counted = (match == GroupMatch.ALL) & (dead >= 0)[owner]",
        _REPLIES,
    ),
    Mutant(
        "spread-row-group-of-nowhere",
        "row groups are those of the file",
        _MESSAGES,
        "    if (sums[known] != logged[known]).any():\n",
        "    if (sums[known] < logged[known]).any():\n",
        _REPLIES,
    ),
    Mutant(
        "spread-lost-rows-without-facts",
        "a file without facts is needed as a whole; X-b",
        "index/narrowing.py",
        "needed=~known | any_of(may)",
        "needed=any_of(may)",
        _REPLIES,
    ),
    Mutant(
        "spread-dead-executor-chosen",
        "no dead executor is ever chosen; I-49",
        _REGISTRY,
        "            self.mapping.route(self.mapping.remove(each))\n",
        "            pass\n",
        _SCENARIOS,
        "CarbonData: segments of a dead executor",
    ),
    Mutant(
        "spread-failed-executor-stays",
        "an executor that does not answer is removed; I-49",
        _COORDINATOR,
        "            self.registry.fail(batch.executor, error)\n",
        "",
        _SCENARIOS,
    ),
    Mutant(
        "spread-silent-executor-lives",
        "an executor that was not heard of is dead; I-49",
        _REGISTRY,
        "        if silent:\n",
        "        if silent and not self._live:\n",
        (Check.EXECUTORS_FAIL,),
    ),
    Mutant(
        "spread-replies-in-another-order",
        "what a reply says is of the files that were asked; X-a",
        _COORDINATOR,
        "                places.append(batch.rows)\n",
        "                places.append(np.sort(batch.rows)[::-1])\n",
        _SCENARIOS,
    ),
    Mutant(
        "spread-cache-by-name",
        "a table that is made again leaves nothing; X16",
        _COORDINATOR,
        "            if found is not None and found.table_id == table_id:\n",
        "            if found is not None:\n",
        _SCENARIOS,
        "CarbonData #3374: cache by name",
    ),
    Mutant(
        "spread-old-shards-stay-mapped",
        "a compaction drops the mapping of old shards; I-50, X8",
        _COORDINATOR,
        "        self.registry.drop(table_id, keys)\n",
        "        if not keys:\n            self.registry.drop(table_id)\n",
        _SCENARIOS,
    ),
    Mutant(
        "spread-size-not-reported",
        "the size that an executor reports replaces the estimate; X4",
        _REGISTRY,
        "                self.mapping.report(executor, sizes)\n",
        "",
        _SCENARIOS,
    ),
    Mutant(
        "spread-callers-wait-for-facts",
        "facts that have to be read keep no caller waiting; X10",
        _SERVER + "executor.py",
        "wait(running, timeout=asked.budget_s)",
        "wait(running, timeout=None)",
        _SCENARIOS,
    ),
)
