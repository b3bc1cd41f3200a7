"""The rows of the table of verdicts: a claim of a paper, and what is asked of which record.

Where a study judges the same claim of its own sweep, the row asks by that study's function
(`questions.as_claimed`), or compares the same field, so that the two cannot contradict each other.
"""

from experiments.publishing.verdict_rows import (
    asynchronous,
    communication,
    gossip,
    local_steps,
    nonblocking,
    swarm,
)
from experiments.publishing.verdict_rows.row import Row

ROWS: tuple[Row, ...] = (
    *nonblocking.ROWS,
    *gossip.ROWS,
    *asynchronous.ROWS,
    *swarm.ROWS,
    *communication.ROWS,
    *local_steps.ROWS,
)
