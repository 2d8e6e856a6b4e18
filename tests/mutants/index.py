"""Bugs in what the index calls certain, in its versions, and in its service."""

from __future__ import annotations

from mutants.model import Check, Mutant

_NUMBERS = (Check.INDEX,)
_SERVICE = (Check.INDEX_SERVER,)
_ENTRIES, _ANSWERS = "index/entries.py", "index/answers.py"
_COLUMNS, _SIDES = "index/columns.py", "index/sides.py"
_TABLE, _WINDOW = "index/table.py", "index/window.py"

INDEX = (
    Mutant(
        "index-deleted-rows-counted",
        "a certain count is of live rows; X-d, X20",
        _ENTRIES,
        "UNKNOWN_ROWS, physical - self.dead[rows])",
        "UNKNOWN_ROWS, physical)",
        _NUMBERS,
    ),
    Mutant(
        "index-coarse-taken-for-certain",
        "certain are files all of whose rows match; X-d",
        "pruning/predicate.py",
        "(possible.true & ~(possible.false | possible.null)) | files.empty",
        "(possible.true & ~possible.false) | files.empty",
        _NUMBERS,
    ),
    Mutant(
        "index-unknown-rows-are-none",
        "a file without a number of rows is left to count; X20",
        _ANSWERS,
        "known = part.certain & (live != UNKNOWN_ROWS)",
        "known = part.certain",
        _NUMBERS,
    ),
    Mutant(
        "index-bound-of-a-deleted-row",
        "bounds of a file with deleted rows are not exact; X-d",
        _ENTRIES,
        "        tight &= self.dead == 0\n",
        "",
        _NUMBERS,
    ),
    Mutant(
        "index-wide-bounds-are-tight",
        "wide bounds are not values; Delta protocol, tightBounds",
        _ANSWERS,
        "return self.live > 0 if constant else self.tight",
        "return self.live > 0 if constant else self.live != 0",
        _NUMBERS,
    ),
    Mutant(
        "index-cut-time-as-bound",
        "times in statistics are cut, and no exact bounds; X-d",
        _SIDES,
        'or type_.name in ("date", "boolean")',
        'or type_.name in ("date", "boolean", "timestamp")',
        _NUMBERS,
    ),
    Mutant(
        "index-nan-forgotten",
        "NaN is the greatest float, and not in statistics; X-d",
        _SIDES,
        "    return type_.name in FLOATING\n",
        "    return False\n",
        _NUMBERS,
    ),
    Mutant(
        "index-least-long-overflows",
        "the least integer is less than every other one",
        _ANSWERS,
        'rank = -rank if rank.dtype.kind == "f" else ~rank',
        "rank = -rank",
        _NUMBERS,
    ),
    Mutant(
        "index-texts-by-first-bytes",
        "texts that begin alike are compared as a whole",
        _COLUMNS,
        "        if len(ties):\n",
        "        if False:\n",
        _NUMBERS,
    ),
    Mutant(
        "index-narrow-zones",
        "a zone is excluded only if each of its entries is; X-b",
        _COLUMNS,
        "            np.maximum.reduceat(self.high, starts),\n",
        "            self.high[starts],\n",
        _NUMBERS,
    ),
    Mutant(
        "index-removed-entry-stays",
        "a version has no file that it removed; I-50",
        _ENTRIES,
        "                mask &= self.died[start:stop] > version\n",
        "",
        _NUMBERS,
        "CarbonData: stale after an update",
    ),
    Mutant(
        "index-vector-ignored-by-remove",
        "an entry is a path and a deletion vector",
        _ENTRIES,
        "and self._key(row) == names[at]:",
        "and self._key(row)[0] == names[at][0]:",
        _NUMBERS,
    ),
    Mutant(
        "index-total-keeps-the-removed",
        "the rows of a version are without those of removed files; I-50",
        _WINDOW,
        "total = _plus(total, -1, entries, entries.remove(gone, commit.version))",
        "entries.remove(gone, commit.version)",
        _NUMBERS,
    ),
    Mutant(
        "index-merged-part-forgets-deaths",
        "merged parts keep when their entries died",
        _WINDOW,
        "        np.concatenate([entries.died for entries in small]),\n",
        "        np.concatenate([entries.died * 0 + FOREVER for entries in small]),\n",
        _NUMBERS,
    ),
    Mutant(
        "index-never-looks-again",
        "no answer is older than what was committed before the question; X9",
        _TABLE,
        "window = self._newest(asked - max_staleness_s, at_least)",
        "window = self._newest(-1e9, at_least)",
        _SERVICE,
        "CarbonData: stale after an update",
    ),
    Mutant(
        "index-own-write-not-read",
        "atLeast reads one's own commit",
        _TABLE,
        " and window.latest >= (at_least or 0):\n"
        "            return window\n"
        "        with self._lock:",
        ":\n            return window\n        with self._lock:",
        _SERVICE,
    ),
    Mutant(
        "index-replaced-log-goes-on",
        "a table that is made again leaves nothing; X16",
        "delta/log/delta_log.py",
        "            or position != _position(here)\n",
        "",
        _SERVICE,
        "CarbonData #3374: cache by name",
    ),
    Mutant(
        "index-short-answer-believed",
        "an answer that is not whole is thrown away; X-a",
        "index/server/client.py",
        "        if table.num_rows != answer.splits:\n",
        "        if table.num_rows > answer.splits:\n",
        _SERVICE,
    ),
    Mutant(
        "index-ticket-of-another",
        "a ticket is bound to its caller",
        "index/server/answer_files.py",
        "if part is None or not secrets.compare_digest(part.caller, caller):",
        "if part is None:",
        _SERVICE,
    ),
    Mutant(
        "index-token-not-checked",
        "without the token nothing is said",
        "index/server/transport.py",
        "if self._token and not secrets.compare_digest(digest, wanted):",
        "if self._token and not given:",
        _SERVICE,
    ),
    Mutant(
        "index-no-way-without-the-server",
        "a server that fails costs no row; I-51, X13",
        "index/server/client.py",
        "            except Unreachable as error:\n                self._left_out_until",
        "            except KeyError as error:\n                self._left_out_until",
        _SERVICE,
    ),
)
