"""Points of files: equal numbers in every format, and a sentence for what cannot be trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file

from configs import nonblocking
from experiments import prepare, sweep, tasks
from experiments.tasks import models

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3)).astype(np.float32).round(3)
Y = np.float32(X @ [1, -2, 0.5] > 0)


def write(folder, kind, x, y):
    path = folder / f"points.{kind}"
    if kind == "npz":
        np.savez(path, x=x, y=y)
    elif kind == "svm":
        dump_svmlight_file(x, y, str(path), zero_based=False)
    elif kind == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = {"y": y} | {f"f{i}": column for i, column in enumerate(x.T)}
        parquet.write_table(arrow.table(table), path)
    else:
        columns = np.column_stack([x[:, :2], y, x[:, 2]])
        rows = [";".join(f"{value:.8g}" for value in row) for row in columns]
        path.write_text("\n".join(['a;"b";y;c', *rows, ""]))
    return path


def task(path, **given):
    return tasks.build({"name": "points", "path": str(path)} | given)


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet", "svm"])
def test_every_format_gives_the_same_points(tmp_path, kind):
    made = task(write(tmp_path, kind, X, Y), test=str(write(tmp_path, kind, X, Y)))
    np.testing.assert_allclose(made.train.image[:, 0, :, 0], X, rtol=1e-6)
    np.testing.assert_array_equal(made.labels, Y)
    assert made.train.image.dtype == np.float32 and made.labels.dtype == np.int32
    params = jax.tree.map(jnp.zeros_like, made.init(jax.random.key(0)))
    np.testing.assert_allclose(made.losses(params, made.train), np.log(2), rtol=1e-6)


def test_points_of_minus_and_plus_one_are_two_classes_and_can_be_trained(tmp_path):
    path = write(tmp_path, "svm", X, 2 * Y - 1)
    changes = {"task": f"points(path='{path}', model=mlp(hidden=[4]))", "workers": 4}
    made = prepare.prepare(sweep.override(nonblocking.get_config(), changes)).task
    assert set(made.labels) == {0, 1}
    assert tasks.evaluate(made, made.init(jax.random.key(0)))["test_accuracy"] is not None


def test_numbers_are_predicted_with_half_the_squared_error(tmp_path):
    made = task(write(tmp_path, "csv", X, 3 * X[:, 0] + 1), regression=True, l2=0.5)
    assert len(made.train.image) == 32 and len(made.test.image) == 8 and made.correct is None
    ones = jax.tree.map(jnp.ones_like, made.init(jax.random.key(0)))  # three weights and a bias
    expected = 0.5 * (made.train.image.sum(axis=(1, 2, 3)) + 1 - made.train.label) ** 2 + 0.25 * 4
    np.testing.assert_allclose(made.losses(ones, made.train), expected, rtol=1e-5)
    assert 0 < made.labels.mean() < 1


def test_features_have_mean_0_and_variance_1_over_the_training_points(tmp_path):
    x = np.column_stack([1.7e9 + 30 * np.float64(X[:, 0]), X[:, 1], np.full(40, 0.1)])
    made = task(write(tmp_path, "npz", x, Y), standardise=True)
    seen = made.train.image[:, 0, :, 0]
    np.testing.assert_allclose(seen.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(seen.std(axis=0), [1, 1, 0], atol=1e-3)
    assert len(np.unique(seen[:, 0])) > 25 and seen.dtype == np.float32
    other = task(tmp_path / "points.npz", standardise=True, seed=1)
    assert not np.array_equal(other.labels, made.labels)


@pytest.mark.parametrize(
    ("kind", "x", "y", "given", "words"),
    [
        ("npz", X, Y + 1, {}, "labels reach 2, and no training sample has label 0"),
        ("npz", X, Y + 0.5, {}, "from 0.5 to 1.5, .* or write regression=True"),
        ("csv", X, np.full(40, 1e12), {}, r"targets of .* from 1e\+12 to 1e\+12, where classes"),
        ("csv", np.where(X > 1, np.nan, X), Y, {}, "not finite in point"),
        ("npz", X.astype(object), Y, {}, "cannot be read .*allow_pickle"),
        ("svm", X, Y, {"l2": -1.0}, "points: l2 must be finite and at least 0, got -1.0; raise l2"),
        ("npz", X, Y, {"l2": -1.0, "regression": True}, "points: l2 must be finite and at least 0"),
        ("csv", X, 0 * Y, {}, "all targets of .* are 0, .*; give points of two classes or more"),
        ("npz", X[:1], Y[:1], {}, "0 points of 3 features are left to train and 1"),
        ("csv", X, Y, {"target": "z"}, "csv has 0 columns 'z', .* give target=.* of a, b, y, c"),
        ("npz", X, Y, {"target": "z"}, "npz has no array 'z'; give target='...' of "),
        ("npz", X, Y, {"regression": True, "classes": 2}, "no classes=2; leave one out"),
        ("svm", 0 * X, Y, {}, "cannot be read .no point of it has a feature other than 0"),
        ("npz", X, Y, {"test": "none.npz"}, "none.npz cannot be read .No such file"),
    ],
)
def test_points_that_cannot_be_trained_are_one_sentence(tmp_path, kind, x, y, given, words):
    with pytest.raises(ValueError, match=words):
        task(write(tmp_path, kind, x, y), **given)


def test_columns_of_test_points_go_by_their_names(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,y\n1,2,0\n3,4,1\n5,6,0\n")
    (tmp_path / "b.csv").write_text("b,y,a\n20,1,10\n40,0,30\n")
    made = task(tmp_path / "a.csv", test=str(tmp_path / "b.csv"))
    np.testing.assert_array_equal(made.test.image[:, 0, :, 0], [[10, 20], [30, 40]])
    (tmp_path / "b.csv").write_text("b,y,c\n20,1,10\n40,0,30\n")
    with pytest.raises(ValueError, match="have other columns than each other: a, c"):
        task(tmp_path / "a.csv", test=str(tmp_path / "b.csv"))


    for name, row in (("a", "a,b,a,y\n1,2,9,0\n3,4,8,1\n"), ("b", "b,a,a,y\n2,1,9,0\n")):
        (tmp_path / f"{name}.csv").write_text(row)
    with pytest.raises(ValueError, match="two of their columns have one name, and their orders"):
        task(tmp_path / "a.csv", test=str(tmp_path / "b.csv"))


def test_numbers_of_rows_as_pandas_writes_them_are_no_features(tmp_path):
    """A model would learn labels from them if the rows were sorted by class once."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": X[:, 0], "y": np.sort(Y)}).sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"has a column '', the number of the row .*index=False"):
        task(tmp_path / "a.csv")
    pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="has a column '__index_level_0__', the number"):
        task(tmp_path / "a.parquet")


def test_points_without_names_are_one_sentence(tmp_path):
    (tmp_path / "a.csv").write_text("0.5,-2e3,1\n0.25,3,0\n")
    with pytest.raises(ValueError, match=r"its first line \(0.5, -2e3, 1\) and no names; put a"):
        task(tmp_path / "a.csv", target="1")
    (tmp_path / "a.csv").write_bytes("a,b,y\n0.5,-2e3,1\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match="it has zero bytes, as UTF-16 has; save it as UTF-8"):
        task(tmp_path / "a.csv")


@pytest.mark.parametrize("first", ["", "a b y", "# made on Monday"])
def test_a_first_line_without_columns_is_shown(tmp_path, first):
    (tmp_path / "a.csv").write_text(f"{first}\n0.5,-2e3,1\n")
    with pytest.raises(ValueError, match=f"a.csv has '{first}' as its first line; put the names"):
        task(tmp_path / "a.csv")


def test_times_of_a_parquet_file_are_no_features(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {"when": np.arange(4).astype("M8[s]"), "a": np.arange(4.0), "y": np.arange(4) % 2}
    parquet.write_table(arrow.table(table), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet cannot be read .its column 'when' has times"):
        task(tmp_path / "t.parquet")


def test_classes_in_words_are_one_sentence(tmp_path):
    (tmp_path / "wine.csv").write_text("a,b,y\n1,2,red\n3,4,white\n")
    with pytest.raises(ValueError, match=r"'red'.* in which all are numbers, classes as well"):
        task(tmp_path / "wine.csv")


def wide(classes):
    return models.mlp(classes + 1)


@pytest.mark.parametrize("regression", [False, True])
def test_a_model_of_another_shape_is_one_sentence(tmp_path, regression):
    made = task(write(tmp_path, "csv", X, Y), model=f"{__name__}:wide", regression=regression)
    words = r"32, 1, 3, 1\) and returns \(32, \d\), but .*due.* x.reshape\(len\(x\), -1\)"
    with pytest.raises(ValueError, match=words):
        made.losses(made.init(jax.random.key(0)), made.train)


def test_images_of_an_npz_file_get_an_axis_for_colours(tmp_path):
    image = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    label = np.array([[0], [1], [2], [0], [1], [2]], np.uint8)
    arrays = {"x_train": image, "y_train": label, "x_test": image[:3], "y_test": label[:3, 0]}
    np.savez(tmp_path / "i.npz", **arrays)
    written = f"images(source=npz(path='{tmp_path}/i.npz'), model=logistic)"
    made = tasks.build(written)
    assert made.train.image.shape == (6, 8, 8, 1) and list(made.labels) == [0, 1, 2, 0, 1, 2]
    for changes, words in (
        ({"x_train": image[:5]}, r"train: images have shape \(5, 8, 8, 1\) and labels \(6,\)"),
        ({"y_test": np.array([0, 1, 3])}, "labels reach 3, and no training sample has label 3"),
        ({"x_test": image[:3, :7]}, r"train on are \(8, 8, 1\) and to test on \(7, 8, 1\)"),
        ({"x_test": None}, "has no x_test but x_train, y_test, y_train"),
    ):
        changed = {name: a for name, a in (arrays | changes).items() if a is not None}
        np.savez(tmp_path / "i.npz", **changed)
        with pytest.raises(ValueError, match=words):
            tasks.build(written)
