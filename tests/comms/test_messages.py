"""Bytes and seconds worked out by hand."""

from types import SimpleNamespace

import numpy as np

from comms import cost, messages
from comms.messages import Payload, Transfer

RING = np.array([[1, 0, 3, 2], [3, 2, 1, 0]])  # matchings of a ring of four workers
PATH = np.array([[1, 0, 2, 3], [0, 2, 1, 3]])  # of a path of three, with a worker apart


def sends(*payloads, settled=0, active=None):
    """Return a method that says the same of every update."""
    links = None if active is None else SimpleNamespace(active=active)
    return SimpleNamespace(messages=lambda *_: payloads, settled=settled, links=links)


def schedule(updates=3, width=4, offset=0, **columns):
    """As much of a schedule as bytes depend on."""
    empty = {"population": None, "partner": None, "matchings": None, "ignored": None}
    batches = np.ones((updates, width), int)
    return SimpleNamespace(
        **({"workers": batches, "batches": batches} | empty | columns),
        updates=updates,
        offset=offset,
    )


def test_bytes_and_seconds_by_hand():
    """4 workers, a second per message and per byte."""
    network = cost.uniform_network(1.0, 1.0, workers=4)
    both = messages.together([Payload((800,), (7,)), Payload((1200,)), Payload((), (3,))])
    assert both == Payload((800, 1200), (7, 3))
    # Codes beside floats: a quarter of 10 bytes is 3 of them, and of 10 floats 3 floats.
    mixed = messages.together([Payload((10,), itemsize=1), Payload((40,))])
    assert messages.collective_bytes(mixed, 4) == 6 * 3 + 6 * 12
    # 2 x 3 chunks of a quarter each; the whole of what is gathered to 3 others.
    assert messages.collective_bytes(both, 4) == 6 * 200 + 6 * 300 + 3 * 10
    assert messages.seconds(both, 4, network) == 6 * (1 + 500) + 3 * (1 + 10)
    assert messages.seconds(Payload((800,)), 4, network) == 6 * (1 + 200)
    assert messages.seconds(Payload(gathered=(7,)), 4, network) == 3 * (1 + 7)
    # Three elements of 8 bytes do not fill four chunks of whole elements.
    assert messages.collective_bytes(Payload((24,), itemsize=8), 4) == 6 * 8


def test_links_count_where_they_lead_to_somebody():
    """Matchings one after the other, the second worker's links five times slower."""
    network = cost.uniform_network(1.0, 1.0, {1: 5.0}, workers=4)
    over = Payload(exchanged=10, matchings=RING)
    assert messages.collective_bytes(over, 4) == 2 * 10
    assert messages.seconds(over, 4, network) == 2 * 5 * (1 + 10)
    path = Payload(exchanged=10, matchings=PATH[:1])
    assert messages.collective_bytes(path, 4) == 10 * 2 / 4
    assert messages.seconds(Payload(exchanged=10, matchings=PATH[:0]), 4, network) == 0
    assert messages.seconds(Payload(met=10), 4, network) == 5 * (1 + 10)
    # Repeated messages take a start-up each, and their bytes.
    assert messages.extra_seconds(3, 60, 4, network) == 5 * (3 + 60)
    assert messages.extra_seconds(0, 0, 4, network) == 0


def test_nothing_and_a_single_worker_take_no_time():
    for payload in (Payload(), Payload((0,), (0,))):
        assert messages.seconds(payload, 4, cost.uniform_network(1.0, 1.0, workers=4)) == 0
        assert messages.collective_bytes(payload, 4) == 0
    network = cost.uniform_network(1.0, 1.0, workers=1)
    alone = Payload((800,), (7,), exchanged=9, matchings=np.zeros((1, 1), int), met=9)
    assert messages.seconds(alone, 1, network) == 0
    assert messages.collective_bytes(alone, 1) == 0


def test_every_update_of_a_schedule_is_asked_for_its_own_row():
    """Only distinct rows are asked for: stages up to the settled one, and active matchings."""
    asked = []

    def said(params, workers, row):
        asked.append((row.update, row.active.tolist()))
        size = 100 if row.update < 2 else 8
        return (messages.over_links(size, RING, row),)

    active = np.array([[1, 0], [1, 1], [0, 0], [1, 0], [1, 0], [0, 0]], bool)
    method = SimpleNamespace(messages=said, settled=2, links=None)
    sent = messages.sent_bytes(method, None, schedule(6, matchings=active))
    assert sent.tolist() == [100, 200, 0, 8, 8, 0]
    assert len(asked) == 4
    later = messages.sent_bytes(method, None, schedule(4, offset=2, matchings=active[2:]))
    np.testing.assert_array_equal(later, sent[2:])


def test_pushes_and_meetings_send_each_message_once():
    """As a mean over 10 workers; a position that finished nothing has nobody.

    Workers that are their own partner meet nobody.
    """
    batches = np.array([[1, 2, 0], [1, 0, 0]])
    pushes = schedule(2, population=10, width=3, batches=batches)
    method = sends(Payload((800,), (7,)), Payload((5,)))
    np.testing.assert_allclose(messages.sent_bytes(method, None, pushes), [81.2 * 2, 81.2])
    pushes.ignored = np.array([0, 3])  # by the server, which got them all the same
    np.testing.assert_allclose(messages.sent_bytes(method, None, pushes), [81.2 * 2, 81.2 * 4])
    partner = np.array([[1, 0, 2], [0, 1, 2]])
    pairs = schedule(2, population=10, width=3, partner=partner)
    sent = messages.sent_bytes(sends(Payload(met=50)), None, pairs)
    np.testing.assert_allclose(sent, [2 * 50 / 10, 0])


def test_seconds_follow_the_active_matchings_and_the_stage():
    network = cost.uniform_network(1.0, 1.0, {1: 5.0}, workers=4)

    def said(params, workers, row):
        return (messages.over_links(10 if row.update < 3 else 20, PATH, row), Payload((80,)))

    def active(first, count):
        return np.arange(first, first + count)[:, None] % 2 == np.arange(2)

    method = SimpleNamespace(messages=said, settled=3, links=SimpleNamespace(active=active))
    seconds = messages.exchange_seconds(method, None, 4, network)
    ring = 6 * 5 * (1 + 20)
    assert [seconds(t) for t in (0, 1, 3, 1003)] == [55 + ring, 55 + ring, 105 + ring, 105 + ring]
    method.links = SimpleNamespace(active=lambda first, count: np.zeros((count, 2), bool))
    assert messages.exchange_seconds(method, None, 4, network)(0) == ring


def test_nothing_is_hidden_where_the_network_hides_nothing():
    network = cost.uniform_network(1.0, 1.0, workers=4, hides=False)
    early, late = Payload((80,), beside_gradient=True), Payload((80,), share=0.5, late=1)
    method = sends(early, late)
    method.links = None
    exchange = messages.exchange_transfers(method, None, 4, network)
    assert exchange(0) == (Transfer(2 * 6 * (1 + 20)),)


def test_a_push_pays_for_itself_and_for_the_model_over_its_own_link():
    """A ring would carry it to all others; the link of worker 1 is slow."""
    network = cost.uniform_network(1.0, 1.0, {1: 5.0}, workers=4)
    pushed = messages.push_seconds(sends(Payload((), (7,))), np.zeros(2, np.float32), 4, network)
    np.testing.assert_allclose(pushed(3), np.array([1, 5, 1, 1]) * (1 + 7 + 1 + 8))


def test_payloads_that_leave_together_are_one_transfer():
    """A channel carries one payload after the other, so that a later one is not known too late."""
    early, middle, late = (
        Payload((8,), beside_gradient=True),
        Payload((8,), share=0.5),
        Payload((8,)),
    )
    for payloads, expected in (
        ((), [Transfer(0.0)]),
        ((late, late), [Transfer(3.0)]),
        ((early, early), [Transfer(3.0, 0.0)]),
        ((early, middle), [Transfer(1.0, 0.0), Transfer(2.0, 0.5)]),
        ((late, early), [Transfer(3.0)]),
        ((middle, early), [Transfer(3.0, 0.5)]),
        ((late, late._replace(late=1)), [Transfer(1.0), Transfer(2.0, 1.0, 1)]),
    ):
        assert messages.transfers(payloads, [1.0, 2.0][: len(payloads)]) == tuple(expected)


def test_a_number_of_seconds_is_shared_out_by_bytes():
    network = cost.uniform_network(0.0, 1.0, workers=4)
    early, late = Payload((300,), beside_gradient=True), Payload((100,))
    both = sends(early, late)
    assert messages.lasting(both, None, 4, 2.0) == (Transfer(1.5, 0.0), Transfer(0.5))
    assert messages.lasting(sends(late, late), None, 4, 0.1) == (Transfer(0.1),)
    assert messages.lasting(sends(early), None, 4, 0.1) == (Transfer(0.1, 0.0),)
    assert messages.lasting(sends(), None, 4, 0.1) == (Transfer(0.1),)
    nothing = sends(Payload(beside_gradient=True), Payload())
    assert messages.lasting(nothing, None, 4, 2.0) == (Transfer(1.0, 0.0), Transfer(1.0))
    assert messages.compresses(sends(late, late._replace(encoded=True)), None, 4)
    assert not messages.compresses(both, None, 4)
    of_round = messages.exchange_transfers(both, None, 4, network)
    assert of_round(7) == (Transfer(6 * 75.0, 0.0), Transfer(6 * 25.0))
    assert messages.exchange_seconds(both, None, 4, network)(7) == 600


def test_sequences_travel_step_by_step():
    """Reduced and gathered bytes stand beside it; what goes over the same links adds up."""
    short = (Payload((8,)),)
    long = (Payload((4,), (5,)), Payload(exchanged=7, matchings=RING[:1]))
    first, second = messages.in_step([long, short, long])
    assert first == Payload((4, 8, 4), (5, 5))
    assert second.exchanged == 14 and second.matchings is long[1].matchings
    assert messages.in_step([]) == ()


def test_fallbacks_cost_what_was_sent_less_what_was_planned():
    """Three updates of 800 bytes in place of 80, half an update of two messages in place of it."""
    network = cost.uniform_network(1.0, 1.0, workers=4)
    planned = (Payload((80,)),)
    found = messages.Fallbacks(
        4,
        (
            messages.Alternative(3.0, planned, (Payload((800,)),)),
            messages.Alternative(0.5, planned, (Payload((80,)), Payload(gathered=(10,)))),
        ),
    )
    assert messages.fallback_bytes(found, 4) == 3 * 1.5 * 720 + 0.5 * 30
    assert messages.fallback_bytes(found, 4, pushed=True) == 3 * 720 + 0.5 * 10
    # A ring of 6 steps has 180 bytes more in each, one that gathers has 3 steps of 10 bytes.
    assert messages.fallback_seconds(found, 4, network) == 3 * 6 * 180 + 0.5 * 3 * 11
    nothing = messages.Fallbacks(0, ())
    assert (
        messages.fallback_bytes(nothing, 4) == messages.fallback_seconds(nothing, 4, network) == 0
    )
