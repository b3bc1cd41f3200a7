"""Costs of traced programs, worked out by hand, and turns of programs on a clock of the test."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import program_costs, stopwatch

KB = 1024
X = jax.ShapeDtypeStruct((16, 16), jnp.float32)  # 1 kB


def costs(program, *arguments, given_away=()):
    return program_costs.of_jaxpr(jax.make_jaxpr(program)(*arguments).jaxpr, given_away)


def test_products_and_convolutions_count_twice_a_multiply_add():
    assert costs(lambda x: x @ x, X).flops == {"float32": 2 * 16**3}
    both = costs(lambda x: (x @ x, x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16)), X)
    assert both.flops == {"float32": 2 * 16**3, "bfloat16": 2 * 16**3}
    image, kernel = jnp.zeros((2, 8, 8, 3)), jnp.zeros((3, 3, 3, 5))
    convolved = costs(
        lambda a, k: jax.lax.conv_general_dilated(
            a, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        image,
        kernel,
    )
    assert convolved.flops == {"float32": 2 * (2 * 4 * 4 * 5) * (3 * 3 * 3)}


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_the_gradient_of_a_strided_convolution_takes_as_much_as_itself(stride):
    """Of its input: the zeros between what comes back are not multiplied."""
    kernel = jnp.zeros((3, 3, 3, 5))

    def convolved(a):
        return jax.lax.conv_general_dilated(
            a, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    image, out = jnp.zeros((2, 8, 8, 3)), jnp.zeros((2, 8 // stride, 8 // stride, 5))
    back = costs(lambda ct: jax.linear_transpose(convolved, image)(ct), out)
    assert back.flops == costs(convolved, image).flops


def test_a_loop_counts_as_often_as_it_is_known_to_run():
    def scanned(x):
        return jax.lax.scan(lambda c, _: (c @ x, None), x, length=7)[0]

    def unknown(x, count):
        return jax.lax.fori_loop(0, count, lambda _, c: c @ x, x)

    assert costs(scanned, X).flops["float32"] == 7 * 2 * 16**3
    assert costs(unknown, X, jnp.int32(3)).flops["float32"] == 2 * 16**3


@pytest.mark.parametrize("first", [True, False])
def test_of_branches_each_cost_is_the_largest(first):
    """The branch with the most products may need less memory than another one, or as much."""
    product, other = (lambda x: x @ x), (lambda x: jnp.cumsum(jnp.sin(jnp.cumsum(x, 0)), 0))
    branches = (product, other) if first else (other, product)
    found = costs(lambda x, chosen: jax.lax.cond(chosen, *branches, x), X, True)
    assert found.flops == {"float32": 2 * 16**3}
    assert (found.moved, found.memory) == pytest.approx((6 * KB, 3 * KB), rel=0.01)


def test_a_loop_holds_a_slice_and_writes_its_carry_in_place():
    """Beside its results, a carry and seven rows, one row that is read and one that is made."""
    rows = jax.ShapeDtypeStruct((7, *X.shape), X.dtype)

    def stacked(w, carry, rows):
        return jax.lax.scan(lambda c, row: (c @ w, row @ w), carry, rows)

    found = costs(stacked, X, X, rows)
    assert found.memory == (1 + 7 + 1 + 1) * KB and found.moved == 7 * 6 * KB


def test_flops_are_those_that_the_compiler_counts():
    """XLA counts what works element by element too, which is little here."""
    w = [np.ones((64, 64), np.float32) for _ in range(3)]
    x = np.ones((32, 64), np.float32)

    def loss(w):
        return jnp.sum(jnp.maximum(x @ w[0], 0) @ w[1] @ w[2])

    ours = costs(jax.grad(loss), w).flops["float32"]
    counted = jax.jit(jax.grad(loss)).lower(w).cost_analysis()["flops"]
    assert ours == pytest.approx(counted, rel=0.05)


def test_what_works_element_by_element_needs_no_buffer_of_its_own():
    """Of x -> sin(2 x + 1) y both are read and one is written. A sum reads a buffer."""
    found = costs(lambda x, y: jnp.sin(2 * x + 1) * y, X, X)
    assert found.memory == KB and found.moved == 3 * KB
    summed = costs(lambda x: jnp.sum(2 * x + 1), X)
    assert summed.memory == KB + 4 and summed.moved == 3 * KB + 4


def test_buffers_are_freed_after_their_last_use():
    """Of four products in a row two are there at a time; the forward pass of a gradient stays."""
    assert costs(lambda x: x @ x @ x @ x @ x, X).memory == 2 * KB

    def loss(x, w):
        for _ in range(3):
            x = jnp.sin(x @ w)
        return x.sum()

    # Three products are kept; the last cosine, and what comes of it, come on top.
    assert 4 * KB <= costs(jax.grad(loss), X, X).memory <= 6 * KB


def test_a_result_may_lie_where_an_argument_was_given_away():
    def step(w, x):
        return w - 2 * x

    assert costs(step, X, X).memory == KB
    assert costs(step, X, X, given_away=[0]).memory == 0
    assert costs(lambda x: x + x @ x, X).memory == KB  # where the product ends


def test_a_device_is_known_by_words_of_its_kind():
    peaks = program_costs.PEAKS
    for kind, name in (("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA GH200 480GB", "GH200"),
                       ("NVIDIA H200", "H200"), ("TPU v5 lite", "TPU v5 lite")):  # fmt: skip
        assert program_costs.peak_of(kind) is peaks[name]
    assert program_costs.peak_of("TPU v5x") is None


def test_a_product_copies_what_lies_in_another_order():
    """Of x' (x x) the right side is made first, and the left one is turned."""
    turned = costs(lambda x: jnp.einsum("ki,kj->ij", x, x @ x), X)
    assert turned.memory == costs(lambda x: x @ (x @ x), X).memory + KB


# --- seconds ---


@pytest.fixture
def calls(monkeypatch):
    """Programs that take as many seconds as their turn says, on a clock that only they move."""
    now, called = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def program(name, takes):
        takes = iter(takes)

        def run():
            called.append(name)
            now[0] += next(takes)
            return jnp.zeros(())

        return run

    return called, program


def test_programs_take_turns_and_the_warm_up_does_not_count(calls):
    called, program = calls
    programs = {"a": program("a", [50, 4, 1, 2]), 7: program(7, [90, 10, 10, 1000])}
    assert stopwatch.seconds(programs, 3) == {"a": 1.5, 7: 10.0}
    assert called == ["a", 7, 7, "a", "a", 7, 7, "a"]


def test_turns_stop_when_the_budget_is_used_up(calls):
    called, program = calls
    programs = {name: program(name, itertools.repeat(1.0)) for name in "ab"}
    stopwatch.seconds(programs, 9, budget=0.0)
    assert len(called) == 8  # one untimed, three at least
    stopwatch.seconds(programs, 9, budget=9.0)
    assert len(called) == 8 + 12  # ten seconds are gone after five turns
