"""Plans of a simulated run: what lands in time, and versions that outlive a segment."""

from types import SimpleNamespace

import numpy as np

from runtimes import planning, simulate
from runtimes.planning import allocate, init_slots
from stragglers import delays
from stragglers.rules.replay import recorded
from tests import planned
from tests.refusals import refused
from tests.runtimes.toy import SAMPLES, B


def planner(rule, stale=True):
    return planning.Planner(rule, B, 1, stale, simulate.WholeInput((), SAMPLES).most)


def test_an_update_that_lands_on_time_is_in_time():
    """One worker, an update every second."""
    plans = planner(planned.rule("k_async", delays.deterministic(1.0), 1, 1, 0, k=1))
    plan, turn = plans.take(plans.start(remembers=False), 3.0, np.inf)
    assert turn.schedule.updates == plan.update == 3 and plan.samples == 3 * B
    np.testing.assert_array_equal(turn.samples, [0, B, 2 * B])  # seen before each update
    assert plans.take(plan, 3.5, np.inf)[1] is None
    plan, turn = plans.take(plan, 100.0, 2)
    assert turn.schedule.offset == 3 and plan.update == 5


def test_a_replayed_version_lives_until_the_segment_that_reads_it_last():
    made = planned.plan(
        "k_async", delays.exponential(1.0), 8, 5 * planning.PLANNED_UPDATES // 2, k=2
    )
    assert made.staleness.max() > 10
    plans = planner(recorded(made))
    plan, ran = plans.skip(plans.start(remembers=False), np.inf, np.inf)
    assert plan.planned is None and plan.update == made.updates
    np.testing.assert_array_equal(ran.version, made.version)


def test_turns_of_equal_updates_have_equal_shapes():
    """The rest of the planned rows is no turn of its own."""
    plans = planner(planned.rule("k_async", delays.exponential(1.0), 8, 1, 0, k=3))
    every = 3 * planning.PLANNED_UPDATES // 8  # does not divide what is planned at once
    plan, counts, ran = plans.start(remembers=False), [], []
    for _ in range(10):
        plan, turn = plans.take(plan, np.inf, every)
        counts.append(turn.schedule.updates)
        ran.append(turn)
    assert counts == [every] * 10
    whole = planned.plan("k_async", delays.exponential(1.0), 8, 10 * every, k=3)
    np.testing.assert_array_equal(
        np.concatenate([turn.schedule.version for turn in ran]), whole.version
    )
    assert plans.take(plan, np.inf, np.inf)[1].schedule.updates == planning.PLANNED_UPDATES


def test_slots_go_on_where_a_turn_takes_rows_of_two_plans():
    """Every contribution reads the slot that its version was written to, and nobody else since."""
    plans = planner(planned.rule("k_async", delays.exponential(1.0), 8, 1, 0, k=1))
    plan, held, update = plans.start(remembers=False), {0: 0}, 0
    for _ in range(12):
        plan, turn = plans.take(plan, np.inf, 25)
        for row in range(turn.schedule.updates):
            versions, read = turn.schedule.version[row], turn.read[row]
            assert [held[slot] for slot in read] == versions.tolist()
            assert held[turn.current[row]] == update
            update += 1
            held[turn.write[row]] = update
    assert plan.update == update == 300


def test_what_is_known_of_all_rows():
    def known(name, **options):
        rule = planned.rule(name, delays.exponential(1.0), 8, 2, 0, **options)
        plans = planner(rule, stale=rule.asynchronous)
        return plans.take(plans.start(remembers=False), np.inf, 10)[1].known

    assert known("barrier") == (True, True, True)
    assert known("first_finisher", in_flight="cut") == (True, False, True)  # somebody has nothing
    assert known("k_async", k=1) == (False, True, True)


# --- slots of versions, against a history that keeps everything


def segment(version, offset=0, held=None):
    version = np.asarray(version, np.int32)
    return SimpleNamespace(version=version, updates=len(version), offset=offset, held=held)


def async_versions(workers, per_update, updates, rng):
    """Versions of an asynchronous run in which any worker may deliver at any time."""
    held = np.zeros(workers, int)
    rows = []
    for t in range(updates):
        who = rng.integers(0, workers, per_update)  # with repetition
        rows.append(held[who].copy())
        held[who] = t + 1
    return np.array(rows), held


def test_every_read_finds_its_version_in_any_segmentation():
    rng = np.random.default_rng(8)
    versions, held = async_versions(8, 4, 200, rng)
    memory = np.zeros(9, int)  # the content of each slot: which version
    state = init_slots(9)
    begin = 0
    while begin < 200:
        end = min(200, begin + int(rng.integers(1, 60)))
        later = versions[end:]
        still = np.unique(np.concatenate([later[later <= end], held[held <= end]]))
        state, read, write, current = allocate(state, segment(versions[begin:end], begin, still))
        for t in range(begin, end):
            np.testing.assert_array_equal(memory[read[t - begin]], versions[t])
            assert memory[current[t - begin]] == t
            memory[write[t - begin]] = t + 1
        begin = end


test_unknown_versions_and_too_many_of_them_are_refused = refused(
    (lambda: allocate(allocate(init_slots(3), segment([[0], [1], [2]]))[0], segment([[1]], 3)),
     "update 3 reads version 1"),
    (lambda: allocate(init_slots(2), segment([[0], [0], [0], [0], [1], [2], [3]])),
     "more than 2 live versions"),
)  # fmt: skip


def test_a_segment_that_ends_earlier_has_the_same_slots_so_far():
    """A plan that is cut short must find every version where the updates before have put it."""
    rng = np.random.default_rng(0)
    versions, held = async_versions(8, 4, 264, rng)
    state, _, _, _ = allocate(init_slots(9), segment(versions[:200], 0, versions[200:]))
    for end in range(201, 264):
        whole, short = (
            allocate(state, segment(versions[200:last], 200, np.append(versions[last:], held)))
            for last in (264, end)
        )
        for long, brief in zip(whole[1:], short[1:], strict=True):
            np.testing.assert_array_equal(long[: end - 200], brief)
