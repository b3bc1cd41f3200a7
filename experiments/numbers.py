"""Tables of numbers that a sweep prints beside its claims: what is claimed by nobody."""

from rich import box
from rich.table import Table

from experiments.stats import Numbers


def as_table(numbers: Numbers) -> Table:
    """The table as it is printed."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=numbers.title)
    for place, column in enumerate(numbers.columns):
        table.add_column(column, justify="right" if place else "left", overflow="fold")
    for row in numbers.rows:
        table.add_row(*row)
    return table
