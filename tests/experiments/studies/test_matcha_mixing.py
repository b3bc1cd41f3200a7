import networkx as nx
import numpy as np
import pytest
from PIL import Image

from comms import topology
from experiments.studies import matcha_mixing


@pytest.mark.parametrize(
    ("k", "rho", "vanilla"), [(0, 0.64398, 0.65378), (4, 0.67554, 0.71305), (5, 0.78394, 0.55431)]
)
def test_mixing_rates_of_the_papers_graphs(k, rho, vanilla):
    rates = matcha_mixing.mixing_rates(topology.matcha_graph(k), [0.5, 1.0])
    assert rates.matcha == pytest.approx([rho, vanilla], abs=1e-4)
    assert rates.vanilla == pytest.approx(vanilla, abs=1e-4)
    assert rates.periodic == pytest.approx([1 - 0.5 * (1 - vanilla), vanilla], abs=1e-4)


def test_graphs_without_matchings_of_their_own_are_decomposed():
    rates = matcha_mixing.mixing_rates(nx.complete_graph(4), [1.0])
    np.testing.assert_allclose([rates.matcha[0], rates.vanilla], 0, atol=1e-9)


@pytest.mark.slow
def test_the_figure_of_rho_wants_eight_graphs(tmp_path):
    graphs = {f"ring of {n}": topology.ring(n) for n in range(3, 11)}
    matcha_mixing.draw_mixing_rates(graphs, tmp_path / "rho.png")
    with Image.open(tmp_path / "rho.png") as image:
        assert image.format == "PNG" and image.size == (1200, 675)
