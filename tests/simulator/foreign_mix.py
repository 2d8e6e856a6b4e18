"""Which foreign commits histories are made of, and how often."""

from __future__ import annotations

from collections.abc import Callable

from simulator import foreign, foreign_files, foreign_table
from simulator.foreign import Committed
from simulator.world import World

Act = Callable[[World], Committed | None]

COMMITS: tuple[tuple[int, Act], ...] = (
    # W1
    (5, foreign.append),
    (2, foreign.append_by_delta_rs),
    (1, foreign.append_stream),
    (1, foreign.append_with_schema_merge),
    (1, foreign.insert_select),
    # W2, W6
    (4, foreign.delete_with_vectors),
    (3, foreign.update_with_vectors),
    (3, foreign.merge_with_vectors),
    (2, foreign.delete_by_rewrite),
    (1, foreign.delete_some_by_rewrite),
    (2, foreign.update_by_rewrite),
    (2, foreign.merge_by_rewrite),
    # W3, W7
    (2, foreign_files.optimize),
    (2, foreign_files.z_order),
    (2, foreign_files.purge),
    # W4
    (1, foreign_files.overwrite),
    (1, foreign_files.replace_where),
    (2, foreign_files.restore),
    (1, foreign_files.rewrite_in_vain),
    # W8, and a vacuum that is careful
    (1, foreign_table.set_property),
    (1, foreign_table.add_column),
    (1, foreign_table.add_constraint),
    (1, foreign_table.vacuum_with_retention),
    (1, foreign_table.vacuum_by_delta_rs),
)
"""With weights."""

HOUSEKEEPING: tuple[tuple[float, Callable[[World], None]], ...] = (
    (0.1, foreign_table.vacuum),
    (0.4, foreign_table.clean_log),
    (0.2, foreign_table.checkpoint),
    (0.2, foreign_table.lose_row_map),
)
"""What leaves no commit, with weights; only in histories with faults."""

SWITCHES: tuple[tuple[int, Act], ...] = ((5, foreign_table.switch_vectors),)
"""On tables whose deletion vectors are switched on and off."""

BY_NAME: dict[str, Act] = {act.__name__: act for _, act in (*COMMITS, *SWITCHES)}
