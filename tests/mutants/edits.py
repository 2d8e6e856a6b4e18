"""Bugs of tables without deletion vectors: heirs, edits, and the row maps of commits with them."""

from __future__ import annotations

from mutants.model import Check, Mutant

_EDITS = (Check.EDITS, Check.HEIRS)
_MAPS = (Check.RULES, Check.EDITS)

_CARRY = "operations/session/carry_out.py"
_KEPT = "operations/rounds/edits.py"
_WANTED = "spark/jobs/edits.py"
_HEIRS = "operations/kinds/heirs.py"
_PUBLISHED = "reconcile/published.py"
_REWRITE = "reconcile/rewrite.py"

EDITS = (
    # Rewrites.
    Mutant(
        "masks-accumulated",
        "R-3: a decision starts from what was read, not from an earlier one",
        _REWRITE,
        "if known is None or known[0] != since:",
        "if known is None or not known[0].issuperset(since):",
        _MAPS,
    ),
    Mutant(
        "heir-forgets-its-deletes",
        "rewrites: rows that an heir lacks are hidden",
        "reconcile/rules.py",
        "InputFate.HEIR: RewriteRule(OutputMask.LEFT_OUT, False)",
        "InputFate.HEIR: RewriteRule(OutputMask.NONE, False)",
        _MAPS,
    ),
    Mutant(
        "heir-with-a-row-of-its-own",
        "R-7: an heir goes only if the outputs have all its live rows",
        _REWRITE,
        "            if not rows.isdisjoint(row_map.input(part.source).dead):\n"
        "                break\n",
        "",
        _MAPS,
    ),
    Mutant(
        "heir-known-in-part",
        "R-7: an heir goes only if all its live rows come from inputs",
        _REWRITE,
        "if known and known == now.rows - len(now.dead):",
        "if known:",
        _MAPS,
    ),
    Mutant(
        "heir-values-dropped",
        "rewrites: of rows that an heir changed, the outputs take its values",
        _REWRITE,
        "                _replace(new_rows, heir, part, rows, row_map)\n",
        "",
        _MAPS,
    ),
    Mutant(
        "heirs-never-taken",
        "rewrites: what our statements edited goes in its input's place",
        _REWRITE,
        "            if known and known ==",
        "            if known < 0 and known ==",
        _MAPS,
    ),
    Mutant(
        "left-alone-input-removed",
        "rewrites: a group that is left alone keeps its inputs; R-8",
        _REWRITE,
        "        for members, outputs in alone:\n            dropped.update(members, outputs)",
        "        for _, outputs in alone:\n            dropped.update(outputs)",
        _MAPS,
    ),
    Mutant(
        "left-alone-heir-elsewhere",
        "rewrites: an heir of a group that is left alone stays, in other groups, too",
        _REWRITE,
        "            dropped.update(members, outputs)\n    of_input:",
        "            dropped.update(members, outputs)\n        break\n    of_input:",
        (Check.RULES,),
    ),
    Mutant(
        "contended-group-commits",
        "R-9: a contended group stays, and the others commit",
        _REWRITE,
        "if not dropped.isdisjoint(members) or any(path in contended for path in members):",
        "if not dropped.isdisjoint(members):",
        (Check.RULES,),
    ),
    # Heirs.
    Mutant(
        "heir-traced-beyond-its-input",
        "heirs: the chain of edits ends at the input that was read",
        _HEIRS,
        "        while source not in self._inputs:\n",
        "        while source not in self._inputs or source in self._history.row_maps:\n",
        _EDITS,
    ),
    Mutant(
        "heir-of-a-restore",
        "heirs: a file that a restore brings back keeps what it was made from",
        _HEIRS,
        "ancestors.setdefault(path, lost)",
        "ancestors[path] = lost",
        _EDITS,
    ),
    Mutant(
        "heir-changed-once",
        "R-6: a row that any edit of a chain changed has other values than the input's",
        _HEIRS,
        "changed |= np.isin(origins, to_array(values))",
        "changed = np.isin(origins, to_array(values))",
        _EDITS,
    ),
    Mutant(
        "equal-row-used-twice",
        "heirs by content: two equal rows need two rows of inputs",
        _HEIRS,
        "at = np.searchsorted(numbers, wanted) + np.arange(len(wanted)) - begins",
        "at = np.searchsorted(numbers, wanted)",
        _EDITS,
    ),
    Mutant(
        "equal-but-for-the-sign-of-zero",
        "heirs by content: rows are equal bit by bit",
        _HEIRS,
        "columns.append([_as_integers(a) if pa.types.is_floating(a.type) else a for a in pair])",
        "columns.append(pair)",
        (Check.HEIRS,),
    ),
    # Edits.
    Mutant(
        "edit-of-an-edit",
        "R-3: an edit starts from what the job wrote, or from a live file",
        _KEPT,
        "        files = self.maker.make(wanted)\n",
        "        files = self.maker.make([\n"
        "            type(w)(w.source, w.drops.union(*(m.wanted.drops for m in self._of.get(\n"
        "                (w.source.logged_path, w.part), ()))), w.new, w.columns, w.part)\n"
        "            for w in wanted])\n",
        (Check.EDITS,),
    ),
    Mutant(
        "edit-without-its-vector",
        "R-4: which edit is wanted depends on the rows that are dead in its file",
        _WANTED,
        "            self.drops == other.drops\n            and len",
        "            len",
        (Check.EDITS,),
    ),
    Mutant(
        "edit-with-other-values",
        "R-4: which edit is wanted depends on the values that it gets",
        _WANTED,
        "            and all(a.equals(b) for a, b in zip(self.new, other.new, strict=True))\n",
        "",
        (Check.EDITS,),
    ),
    Mutant(
        "edit-with-unwanted-rows",
        "R-4: an edit is published only if it is what the decision wants",
        _KEPT,
        "            if each.wanted.equals(wanted):\n",
        "            if each.wanted.drops.issubset(wanted.drops):\n",
        (Check.EDITS,),
    ),
    Mutant(
        "edited-file-stays",
        "edits: a file is removed by the commit that shows its edit; R-8",
        _CARRY,
        "        removes.append(of.add)\n",
        "",
        (Check.EDITS,),
    ),
    Mutant(
        "edit-revives-deleted-rows",
        "edits: rows that are dead in a file are in none of its edits",
        "reconcile/statement.py",
        "new, dead = [], deletes.dead\n",
        "new, dead = [], to_bitmap(found.positions)\n",
        (Check.EDITS,),
    ),
    Mutant(
        "moved-row-stays",
        "edits: a row with a new partition value leaves its file",
        "reconcile/statement.py",
        "if stays(path, inserts[number].path):",
        "if True:",
        (Check.EDITS,),
    ),
    Mutant(
        "vectors-although-off",
        "R-2: no commit of ours adds a deletion vector where the table has them off",
        _CARRY,
        "if not (hidden or output.new or output.cut_at):",
        "if not (output.new or output.cut_at):",
        (Check.EDITS,),
    ),
    Mutant(
        "row-lost-at-a-border",
        "edits: the files that an output becomes have all its rows",
        _CARRY,
        "kept = span(start, end) - hidden",
        "kept = span(start + bool(start), end) - hidden",
        (Check.EDITS,),
    ),
    # Row maps of commits.
    Mutant(
        "map-to-the-input",
        "R-5: a map leads to the files that its own commit removes",
        _PUBLISHED,
        "        if file.path in heirs:\n            parts",
        "        if file.path in heirs and file.path in known:\n            parts",
        _MAPS,
    ),
    Mutant(
        "reordered-heir-in-one-run",
        "R-5: rows that an heir has in another order have runs of their own",
        _PUBLISHED,
        "(np.diff(number) != 0) | (np.diff(rank) != 1)",
        "np.diff(number) != 0",
        _MAPS,
    ),
    Mutant(
        "heir-by-its-key",
        "R-7: a row of an heir equals a row of an input in all columns",
        _HEIRS,
        "return None if same is None else found",
        "return found",
        (Check.HEIRS,),
    ),
    Mutant(
        "map-of-the-job-published",
        "R-5: a commit that takes heirs has a map of its own",
        _CARRY,
        "    if is_edited or _takes_heirs(change):\n",
        "    if is_edited:\n",
        (Check.EDITS,),
    ),
    Mutant(
        "map-follows-a-row-twice",
        "R-5: rows are looked up where the job's map has them",
        _PUBLISHED,
        "kept, places = _followed(origins[here], heir, part, rewrite)",
        "kept, places = _followed(positions[here], heir, part, rewrite)",
        _MAPS,
    ),
    Mutant(
        "map-without-emptied-files",
        "R-10: a map knows every file that its commit removes",
        _PUBLISHED,
        "for path in sorted(removed.difference(builder.input_paths)):",
        "for path in ():",
        _MAPS,
    ),
    Mutant(
        "map-counts-dropped-rows",
        "R-6: changed rows are counted in the edit, not in its file",
        _CARRY,
        "return to_bitmap(positions - np.searchsorted(to_array(edit.drops), positions))",
        "return to_bitmap(positions)",
        (Check.EDITS,),
    ),
    Mutant(
        "changed-row-followed",
        "R-6: a changed row has no unchanged origin",
        "reconcile/row_tracing.py",
        "unknown = rest & row_map.changed.get(path, BitMap64())",
        "unknown = BitMap64()",
        (Check.EDITS, Check.RULES),
    ),
    Mutant(
        "changed-rows-not-stored",
        "R-6: the bytes of a map say which rows are changed",
        "rowmap/binary_format.py",
        "    return RowMap(identity, inputs, outputs, runs, sorted_groups, changed)",
        "    return RowMap(identity, inputs, outputs, runs, sorted_groups)",
        _MAPS,
    ),
    Mutant(
        "lost-map-still-mapped",
        "R-10: a rewrite whose map is lost is a change",
        "reconcile/classify.py",
        "        if row_map is None or add.data_change or",
        "        if row_map is None:\n            return True\n        if add.data_change or",
        (Check.RULES,),
    ),
    Mutant(
        "edit-named-as-its-source",
        "R-1: the log spells the path of an edit as its own",
        _CARRY,
        ' if name != "path"}',
        "}",
        (Check.PLAIN,),
    ),
    # Updates that stage the columns that are set.
    Mutant(
        "parts-of-rows-inserted",
        "R-2: new rows without their other columns are only ever read by edits",
        "operations/model.py",
        "not self.writes_vectors or self.frozen[1].set_only",
        "not self.writes_vectors",
        (Check.PLAIN,),
    ),
    Mutant(
        "parts-of-rows-moved",
        "statements: a row that changes its partition is written whole",
        "operations/kinds/row_level.py",
        "wanted if wanted is not None and moves.isdisjoint(wanted) else None",
        "wanted",
        (Check.PLAIN,),
    ),
)
