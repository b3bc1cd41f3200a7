"""Whether accuracy follows the epochs of a node, and hardly its local steps (arXiv 1910.12308)."""

from collections.abc import Iterator

from experiments import premises
from experiments.studies.swarm import EXACT, LARGE, as_accurate

LENGTHS = (75, 150, 300, 600, 1200)  # mini-batches of a node
METHODS = ("swarm/H=1", EXACT, "swarm/H=4")
SPANS = ((75, 300), (150, 600), (300, 1200))  # of LENGTHS, four times as many
LITTLE = 0.003  # of accuracy, which the paper's figures call no loss


def claims(arms) -> Iterator[tuple[str, str]]:
    """Two lengths of a number of local steps, two numbers of local steps of a length."""
    for fewer, more in SPANS:
        yield (
            f"epochs matter: {EXACT} is more accurate after {more} mini-batches than after {fewer}",
            premises.text(more_accurate, arms, _arm(EXACT, more), _arm(EXACT, fewer)),
        )
    for length in LENGTHS:
        yield (
            f"local steps matter little: H = 4 within .3 points of H = 1, {length} mini-batches",
            premises.text(
                as_accurate, arms, _arm("swarm/H=4", length), _arm("swarm/H=1", length), LITTLE
            ),
        )
    *_, once, twice = LENGTHS
    for length in (once, twice):
        yield (
            f"after {length} mini-batches: within .3 points of large batches after {once}",
            premises.text(within, arms, _arm(EXACT, length), _arm(LARGE, once)),
        )


def _arm(method: str, length: int) -> str:
    return f"{method}/batches={length}"


def more_accurate(arms, ours: str, theirs: str) -> premises.Answer:
    """Test accuracies, of ours after more samples."""
    pair = premises.named(arms, theirs, ours)
    premises.finite("test_accuracy", *pair)
    return premises.at_most(*pair, "test_accuracy")


def within(arms, ours: str, theirs: str) -> premises.Answer:
    """Test accuracies, of which ours may be lower by LITTLE; samples may differ."""
    pair = premises.named(arms, theirs, ours)
    premises.finite("test_accuracy", *pair)
    premises.resolved(LITTLE, *pair)
    return premises.at_most(*pair, "test_accuracy", margin=LITTLE)
