"""What configs can name: every kind of part with its factories, their parameters and a sentence."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from experiments import optimizers, prepare, waiting
from experiments.kinds import Kind
from experiments.tasks import TASK, dense_tasks, sparse_tasks

# Heading, where a config names it, and what is known.
SECTIONS: tuple[tuple[str, str, Kind], ...] = (
    ("Methods", "algorithm", prepare.METHOD),
    ("Codecs of methods that take an exchange", "algorithm.exchange", prepare.REDUCER),
    ("Waiting rules", "wait", waiting.RULE),
    ("Delays", "delay", waiting.DELAY),
    ("Tasks", "task", TASK),
    ("Models of images", "task.model", dense_tasks.MODEL),
    ("Models of words", "task.model", sparse_tasks.LANGUAGE_MODEL),
    ("Sources of images", "task.source", dense_tasks.SOURCE),
    ("Corpora", "task.corpus", sparse_tasks.CORPUS),
    ("Interactions", "task.interactions", sparse_tasks.INTERACTIONS),
    ("Graphs", "graph", prepare.GRAPH),
    ("Mixing matrices of methods that gossip", "algorithm.mixing_matrix", prepare.MIXING),
    ("Splits of the samples", "split", prepare.SPLIT),
    ("Networks", "communication", prepare.NETWORK),
    ("Optimizers and their members", "optimizer", optimizers.TRANSFORM),
    ("Schedules of the learning rate", "optimizer.schedule", optimizers.SCHEDULE),
)
CONFIGS = Path(__file__).parent.parent / "configs"


def show(console: Console) -> None:
    """Print all sections, and the files of `configs/` with what can be run of them."""
    for heading, entry, kind in SECTIONS:
        console.print(f"\n[bold]{heading}[/bold]  --config.{entry}=", highlight=False)
        for name in sorted(kind.factories):
            _print(console, call(kind, name), sentence(kind.factories[name]))
    console.print("\n[bold]Configs[/bold]  --config=", highlight=False)
    for path, text in configs():
        _print(console, path, text)
    console.print(
        "\nAnything else is brought along as package.module:factory, see docs/extend.md.",
        highlight=False,
    )


def call(kind: Kind, name: str) -> str:
    """A factory as it is written in a config: its own parameters, with their defaults."""
    parameters = inspect.signature(kind.factories[name]).parameters.values()
    own = [_parameter(one) for one in parameters if one.name not in kind.offered]
    return f"{name}({', '.join(own)})" if own else name


def sentence(factory) -> str:
    """The first sentence of a docstring, on one line; that of what a partial calls, for one."""
    text = inspect.getdoc(getattr(factory, "func", factory)) or ""
    return " ".join(text.partition("\n\n")[0].split())


def configs() -> Iterator[tuple[str, str]]:
    """(path, first line) of every file of `configs/` that has a get_config."""
    for path in sorted(CONFIGS.glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
        if "get_config" in functions:
            yield f"configs/{path.name}", (ast.get_docstring(module) or "").partition("\n")[0]


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return "part, ..."
    if parameter.kind is parameter.VAR_KEYWORD:
        return "..."
    if parameter.default is parameter.empty:
        return parameter.name
    default = parameter.default
    shown = default if isinstance(default, str | bool | int | float | None | tuple) else "..."
    return f"{parameter.name}={str(shown).lower() if isinstance(shown, bool) else shown}"


def _print(console: Console, head: str, text: str) -> None:
    console.print(f"  {escape(head)}", highlight=False, soft_wrap=True)
    if text:
        console.print(f"      [dim]{escape(text)}[/dim]", highlight=False, soft_wrap=True)
