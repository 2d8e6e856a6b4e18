"""Bugs in the log of blocks: its fold, its order, stitching, merging and writing."""

from __future__ import annotations

from mutants.model import Check, Mutant

_SEARCH = (Check.HISTORIES, Check.BLOCKS)
_REAL = (Check.BLOCKS,)

_BOUNDARIES = "mergelog/state/boundaries.py"
_RECORDS = "mergelog/rows/records.py"
_WRITER = "mergelog/writer.py"
_LOG_MERGE = "operations/kinds/log_merge.py"
_LOG_COMPACTION = "operations/kinds/log_compaction.py"

BLOCKS = (
    Mutant(
        "base-read-before-the-log",
        "an instant that the base table holds is not missing in the log: the log is read first",
        "mergelog/view.py",
        "        snapshot = log.snapshot()\n"
        "        base = log.base.snapshot(version, timestamp_ms=timestamp_ms)\n",
        "        base = log.base.snapshot(version, timestamp_ms=timestamp_ms)\n"
        "        snapshot = log.snapshot()\n",
        _REAL,
    ),
    Mutant(
        "append-without-a-look-at-the-base",
        "a writer reads the base table after its append began; L7",
        _WRITER,
        "                self._base, self._snapshot = base.result(), newest.result()\n",
        "                base.result()\n                self._snapshot = newest.result()\n",
        _REAL,
    ),
    Mutant(
        "slow-listing-of-the-base",
        "the base version up to which the log has processed its table never decreases",
        _WRITER,
        "if self._base.version < base_of(self._snapshot):",
        "if self._base.version < 0:",
        _REAL,
    ),
    Mutant(
        "merged-deletes-forgotten-by-readers",
        "with an ordering column a merged delete stays in force; I-37",
        _RECORDS,
        "    if records.order is not None:\n        after |= records.deleted\n",
        "",
        _SEARCH,
        "Apache Hudi: an older event brings a deleted row back after compaction",
    ),
    Mutant(
        "merged-deletes-forgotten-by-the-fold",
        "with an ordering column a merged delete stays in force; I-37",
        _BOUNDARIES,
        "if block.last > mark or (ordered and block.deletes)",
        "if block.last > mark",
        _SEARCH,
    ),
    Mutant(
        "stitch-keeps-winners",
        "a stitched block is right for every mark, even one inside it; I-37, E13",
        _RECORDS,
        "    order = np.lexsort((records.instants, keys))[::-1]\n    first =",
        "    return winners(records)\n"
        "    order = np.lexsort((records.instants, keys))[::-1]\n    first =",
        _SEARCH,
    ),
    Mutant(
        "stitch-drops-merged-deletes",
        "merged deletes stay for `deletesKept`; I-37",
        _RECORDS,
        "np.where(deleted, min(mark, expired), mark)",
        "mark",
        _SEARCH,
    ),
    Mutant(
        "stitch-lets-upserts-beat-deletes",
        "a delete is beaten by deletes only; decision 0112",
        _RECORDS,
        "np.where(deleted, of_deletes, of_all)",
        "of_all",
        _SEARCH,
    ),
    Mutant(
        "live-block-inside-a-run",
        "a run is consecutive: no live block of its group lies between its blocks; I-38, L6",
        "mergelog/runs.py",
        "groupby(blocks, key=lambda block: block.path in taken)",
        "[(False, [block for block in blocks if block.path not in taken])]",
        _REAL,
    ),
    Mutant(
        "blocks-of-other-groups-removed",
        "a log compaction removes the blocks that it has read, no others; I-38",
        _LOG_COMPACTION,
        "gone = [job.inputs[place].logged_path for at in committed "
        "for place in job.runs[at].inputs]",
        "gone = [path for path, block in state_of(work.snapshot).live.items() if any("
        "job.runs[at].first[0] <= block.first and block.last <= job.runs[at].last[-1] "
        "for at in committed)]",
        _REAL,
    ),
    Mutant(
        "inputs-not-checked-at-the-commit",
        "a run is replaced only if all of its blocks are live; I-39, L5",
        "mergelog/runs.py",
        "if gone.isdisjoint(run)",
        "if not gone.issuperset(run)",
        _REAL,
    ),
    Mutant(
        "stitched-after-a-restore",
        "a run is replaced only while the base table holds the records that it leaves out; I-37",
        "mergelog/runs.py",
        "    if state.mark < mark:\n        return RunsLeft(frozenset(), gone)\n",
        "",
        _REAL,
    ),
    Mutant(
        "inputs-listed-again",
        "a log compaction stitches the blocks of its plan, not those that are live later; I-38",
        "spark/jobs/stitch.py",
        "    found = stitch(\n        store,\n        Run(blocks),\n",
        "    from tandem.delta.log.delta_log import DeltaLog\n"
        "    from tandem.mergelog.state.log_table import state_of\n"
        "    from tandem.mergelog.state.model import in_order\n\n"
        "    live = state_of(DeltaLog(store).snapshot()).live\n"
        "    found = stitch(\n        store,\n        Run(in_order(live.values())),\n",
        _REAL,
    ),
    Mutant(
        "filter-on-any-column-leaves-out-blocks",
        "a filter leaves out blocks only if it is on keys: the record may beat one that it keeps",
        "spark/connector/reader.py",
        "all_of(on_columns(where, view.settings.keys))",
        "all_of(where)",
        _REAL,
    ),
    Mutant(
        "stitch-by-an-unrecorded-mark",
        "a log compaction goes by the mark that its version of the log records; I-37",
        _LOG_COMPACTION,
        "            mark=state.mark,\n",
        "            mark=work.snapshot.version,\n",
        _REAL,
    ),
    Mutant(
        "deletes-expire-by-age-alone",
        "a delete expires once a merge follows that is `deletesKept` younger than its own",
        _LOG_COMPACTION,
        "merged_ms = log.snapshot(state.mark).timestamp_ms",
        "merged_ms = work.now_ms",
        _REAL,
    ),
    Mutant(
        "merge-of-another-log",
        "a mark counts under the id of the log that was merged",
        _LOG_MERGE,
        'if _job(spec).log_id not in ("", log.snapshot.metadata.id):',
        "if False:",
        _REAL,
    ),
    Mutant(
        "merge-ignores-new-files",
        "a merge is serializable: appends of others come before the log; L4",
        _LOG_MERGE,
        "        self._match_new_files(work, state)\n        view =",
        "        view =",
        _REAL,
        "`WriteSerializable` by default in Delta Lake",
    ),
    Mutant(
        "merge-after-a-boundary",
        "a merge whose records became void is planned again; L4",
        _LOG_MERGE,
        "if (before.base_id, before.mark, before.live) != (now.base_id, now.mark, now.live):",
        "if before.base_id != now.base_id:",
        _REAL,
    ),
    Mutant(
        "mark-without-the-log-id",
        "a mark counts under the id of its log only",
        _BOUNDARIES,
        "action.app_id == MERGED + log_id",
        "action.app_id.startswith(MERGED)",
        _REAL,
    ),
    Mutant(
        "restore-ignored",
        "a restore takes the mark and the live blocks back",
        _BOUNDARIES,
        "state = replace(history(version), base=base)",
        "state = replace(state, base=base)",
        _SEARCH,
        "RESTORE of Delta Lake does not take `txn`s back",
    ),
    Mutant(
        "overwrite-ignored",
        "an overwrite makes the records before it void; L7",
        _BOUNDARIES,
        "state = LogState(table_id or state.base_id, base, state.mark)",
        "state = replace(state, base=base, base_id=table_id or state.base_id)",
        _SEARCH,
    ),
    Mutant(
        "restored-version-off-by-one",
        "a restore leads to the newest state that has processed the base table up to its version",
        "mergelog/state/base_history.py",
        "if base_of(self._log.snapshot(middle)) <= version:",
        "if base_of(self._log.snapshot(middle)) < version:",
        _REAL,
    ),
    Mutant(
        "void-blocks-stay-in-the-log",
        "a commit of rows also records the result of the fold",
        "mergelog/state/commits.py",
        "snapshot.files_by_path(live - state.live.keys())",
        "snapshot.files_by_path(set())",
        _REAL,
    ),
    Mutant(
        "batch-that-comes-late-counts-twice",
        "a batch counts once",
        _WRITER,
        "if txn is None or txn.version < batch:\n            return None",
        "if txn is None or txn.version != batch:\n            return None",
        _REAL,
    ),
    Mutant(
        "zombie-after-the-rollback",
        "what a clean-up may delete can no longer be committed; I-41",
        _WRITER,
        "if self._layout != layout or self._rolled_back():",
        "if self._layout != layout:",
        _REAL,
    ),
    Mutant(
        "tie-hides-merged-rows",
        "an equal row is hidden by an unmerged record only; I-37",
        _RECORDS,
        "hidden = (of_rows < of_winners) | ((of_rows == of_winners) & newer)",
        "hidden = of_rows <= of_winners",
        _SEARCH,
    ),
    Mutant(
        "tie-spares-rows",
        "an equal row is hidden by an unmerged record; I-37",
        _RECORDS,
        "hidden = (of_rows < of_winners) | ((of_rows == of_winners) & newer)",
        "hidden = of_rows < of_winners",
        _SEARCH,
    ),
    Mutant(
        "null-is-greatest",
        "a NULL in the ordering column is the least value",
        _RECORDS,
        "    ranks[-1] = -1\n",
        "    ranks[-1] = len(ascending)\n",
        _SEARCH,
    ),
    Mutant(
        "zeros-differ",
        "-0.0 equals 0.0 in the ordering column, as in Spark",
        _RECORDS,
        "        values = pc.add(values, pa.scalar(0, values.type))\n",
        "",
        _REAL,
    ),
    Mutant(
        "deleted-row-beats-a-winner",
        "a row that was deleted meanwhile beats no winner; L4",
        "mergelog/rows/merged.py",
        "            if position not in gone:\n                beaten.add(winner)",
        "            beaten.add(winner)",
        _REAL,
    ),
    Mutant(
        "pruned-between-the-extremes",
        "a file is left out only if no key can be in it",
        "mergelog/rows/pruned.py",
        "found = keys_of(name, types[name], values, complete=complete)",
        "found = keys_of(name, types[name], values, complete=True)",
        _REAL,
    ),
    Mutant(
        "block-without-page-checksums",
        "a damaged block is an error, never other rows",
        "mergelog/rows/stitch.py",
        "checksums=True",
        "checksums=False",
        _REAL,
    ),
)
