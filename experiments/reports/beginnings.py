"""What workers do in the first rounds: whose strips tell most, and what to know about them."""

from collections.abc import Iterator, Mapping, Sequence

from experiments.reports import panels, strip_chart, telling, workdirs

# Arms whose configs are equal in these entries have the same strip, or nearly so.
_ENTRIES = ("wait", "delay", "mini_batches", "graph", "communication", "workers")


def ranked(
    arms: Sequence[workdirs.Arm], looks: Mapping[str, panels.Look]
) -> list[strip_chart.Strip]:
    """The strips of all arms that have one, by how much they tell.

    First comes the arm that is first at the target, then the baseline, then the best arm of every
    other waiting rule, then the best of all other settings that make a strip, then the rest.
    """
    candidates = {
        arm.name: arm for arm in arms if arm.name in looks and looks[arm.name].first.worker.size
    }
    if not candidates:
        return []
    target = arms[0].summary["target_loss"]
    names = telling.ranked([(name, arm.runs) for name, arm in candidates.items()], target)
    baselines = {arm.summary["baseline"] for arm in arms}
    rules, settings = {}, {}
    for name in reversed(names):
        arm = candidates[name]
        rules[arm.summary["wait"]] = name
        settings[tuple(str(arm.config.get(entry)) for entry in _ENTRIES)] = name
    order = [
        names[0],
        *(name for name in names if name in baselines),
        *(name for name in names if name in rules.values()),
        *(name for name in names if name in settings.values()),
        *names,
    ]
    return [
        strip_chart.Strip(
            name,
            looks[name].first,
            candidates[name].summary["workers"],
            looks[name].events,
        )
        for name in dict.fromkeys(order)
    ]


def remarks(strips: Sequence[strip_chart.Strip]) -> Iterator[str]:
    """What a reader of strips should know."""
    if any(strip_chart.has_gaps(strip.first) for strip in strips):
        yield (
            '<p class="quiet">Where there is no bar, nothing of a worker\'s time counted: its '
            "mini-batches were cancelled, ignored or still under way at the end, or its next "
            "round was being prepared.</p>"
        )
    yield (
        '<p class="quiet">Event by event: open a timeline.json, which lies beside each '
        "schedule.npz, in ui.perfetto.dev.</p>"
    )
