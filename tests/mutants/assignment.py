"""Bugs in assigning shards to the executors of the index server. CarbonData shipped several."""

from __future__ import annotations

from mutants.model import Check, Mutant

_CHECKS = (Check.ASSIGNMENT,)
_RULES = "index/server/assignment.py"

ASSIGNMENT = (
    Mutant(
        "assignment-dead-executor-chosen",
        "no dead executor is ever chosen; I-49",
        _RULES,
        "            self.executors.remove(executor)\n",
        "            pass\n",
        _CHECKS,
        "CarbonData: the least loaded executor may be a dead one",
    ),
    Mutant(
        "assignment-dead-one-keeps-shards",
        "shards of a dead executor are reassigned; I-49",
        _RULES,
        "            del self.owners[shard]\n",
        "            pass\n",
        _CHECKS,
    ),
    Mutant(
        "assignment-all-of-the-dead-to-one",
        "shards of a dead executor go one by one; E18",
        _RULES,
        "            del self.owners[shard]\n",
        "            del self.owners[shard]\n"
        "            self.owners |= dict.fromkeys([shard], *self.executors[:1] or [executor])\n",
        _CHECKS,
        "CarbonData: the whole load of a dead executor moves to one other",
    ),
    Mutant(
        "assignment-smallest-first",
        "the largest new shard goes first; E17",
        _RULES,
        "known.sort()",
        "known.sort(key=lambda each: (-each[0], *each[1:3]))",
        _CHECKS,
    ),
    Mutant(
        "assignment-idle-by-bytes-only",
        "an executor without load goes first; I-48",
        _RULES,
        "heap = [(load.shards > 0, load.bytes, executor)",
        "heap = [(load.bytes > 0, load.bytes, executor)",
        _CHECKS,
    ),
    Mutant(
        "assignment-load-not-counted",
        "each shard counts where the next one goes; I-48",
        _RULES,
        "heapq.heapreplace(heap, (True, load - negative, executor))",
        "heapq.heapreplace(heap, (True, load, executor))",
        _CHECKS,
    ),
    Mutant(
        "assignment-known-shard-moves",
        "a shard stays while its executor lives; I-47",
        _RULES,
        "new = dict.fromkeys(shard for shard in asked if shard not in self.owners)",
        "new = dict.fromkeys(asked)",
        _CHECKS,
    ),
    Mutant(
        "assignment-report-moves-shards",
        "a report moves no shard; I-47",
        _RULES,
        "        for shard, size in sizes.items():\n",
        "        for shard, size in sizes.items():\n"
        "            self.owners |= {shard: executor} if shard in self.owners else {}\n",
        _CHECKS,
    ),
    Mutant(
        "assignment-late-report-believed",
        "only the executor of a shard reports its size; X4",
        _RULES,
        "if self.owners.get(shard) == executor",
        "if shard in self.owners",
        _CHECKS,
    ),
    Mutant(
        "assignment-estimate-beats-report",
        "a reported size replaces the estimate; X4",
        _RULES,
        "and shard not in self.reported",
        "and self.executors",
        _CHECKS,
    ),
    Mutant(
        "assignment-32-bit-sums",
        "loads of more than 2 GiB are summed in full",
        _RULES,
        "sizes[executor] += self.sizes.get(shard, 0)",
        "sizes[executor] = (sizes[executor] + self.sizes.get(shard, 0)) % 2**31",
        _CHECKS,
        "CarbonData: `totalSize.toInt`",
    ),
    Mutant(
        "assignment-id-cut-at-underscore",
        "ids of executors are opaque",
        _RULES,
        "if owner == executor]",
        "if owner.id.split('_')[0] == executor.id.split('_')[0]]",
        _CHECKS,
        'CarbonData: `hostAndExecutor.split("_")`',
    ),
    Mutant(
        "assignment-round-begins-again",
        "shards of unknown size go round, also one at a time; X15",
        _RULES,
        "            self.owners[shard] = self.turn\n",
        "            self.owners[shard], self.turn = self.turn, None\n",
        _CHECKS,
    ),
    Mutant(
        "assignment-two-decide",
        "of two askers one decides; X14",
        "index/server/registry.py",
        "        with self._lock:\n            return self.mapping.route(shards)\n",
        "        return self.mapping.route(shards)\n",
        _CHECKS,
    ),
)
