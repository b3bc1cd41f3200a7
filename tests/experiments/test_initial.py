"""A run that starts from given parameters has at first the loss that these had at the end."""

import flax.serialization
import numpy as np
import orbax.checkpoint as ocp
import pytest

from experiments import config_files, prepare, records, train
from tests.experiments.test_checkpoints import configured

DIGITS = {
    "task": "digits(model=mlp(hidden=(8,)))", "wait": "barrier", "seconds": 1.0,
    "evaluate_every": 1.0, "updates": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Return the workdir of a run that has ended."""
    workdir = tmp_path_factory.mktemp("first") / "run"
    train.run(configured(**DIGITS), workdir)
    return workdir


def nested(workdir):
    """Return the trained parameters as {"params": {layer: {name: array}}}."""
    tree = {}
    for name, array in np.load(workdir / records.PARAMETERS).items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = array
    return tree


def as_npz(workdir, folder):
    return workdir / records.PARAMETERS


def as_msgpack(workdir, folder):
    path = folder / "state.msgpack"
    state = {"step": np.int32(3), "opt_state": {"mu": np.zeros(3)}, **nested(workdir)}
    path.write_bytes(flax.serialization.msgpack_serialize(state))
    return path


def as_safetensors(workdir, folder):
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = np.load(workdir / records.PARAMETERS).items()
    path = folder / "model.safetensors"
    bare = {n.removeprefix("params/").replace("/", "."): np.ascontiguousarray(a) for n, a in arrays}
    safetensors.save_file(bare, path)
    return path


def as_orbax(workdir, folder):
    with ocp.StandardCheckpointer() as store:
        store.save(folder / "orbax", nested(workdir))
    return folder / "orbax"


@pytest.mark.few(1)
@pytest.mark.parametrize("form", [as_npz, as_msgpack, as_safetensors, as_orbax])
def test_a_run_begins_where_another_has_ended(first, tmp_path, form):
    path = form(first, tmp_path)
    second = tmp_path / "second"
    train.run(configured(**DIGITS, initial=str(path)), second)
    ended, begins = records.read_metrics(first)[-1], records.read_metrics(second)[0]
    assert begins["update"] == 0 and ended["update"] == 3
    for name in ("train_loss", "test_loss", "test_accuracy"):
        assert begins[name] == ended[name]
    described = records.read_json(second / records.CONFIG)
    assert described["initial"] == str(path) and len(described[records.INITIAL]) == 64


def test_parameters_that_have_changed_are_another_run(first, tmp_path):
    path = tmp_path / "copy.npz"
    path.write_bytes((first / records.PARAMETERS).read_bytes())
    config = configured(**DIGITS, initial=str(path))
    train.run(config, tmp_path / "run")
    arrays = {name: array + 1 for name, array in np.load(path).items()}
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="differs in initial_sha256"):
        train.run(config, tmp_path / "run")


def test_other_names_shapes_and_types_are_refused(first, tmp_path):
    path = tmp_path / "other.npz"
    for change, words in (
        (lambda a, n: a.pop(n), "has no .*bias; give parameters of this model"),
        (lambda a, n: a.update({"params/new": a[n]}), "has new, which the model has not"),
        (lambda a, n: a.update({n: a[n].astype(np.float16)}), "is float16 of shape .* float32"),
        (lambda a, n: a.update({n: a[n].view("V4")}), r"is \|V4 of shape .* float32"),
        (lambda a, n: a.update({n: a[n][1:]}), r"of shape \(7,\), and the model has .* \(8,\)"),
    ):
        arrays = dict(np.load(first / records.PARAMETERS))
        change(arrays, min(arrays))
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=words) as caught:
            train.run(configured(**DIGITS, initial=str(path)), tmp_path / "run")
        assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_unreadable_parameters_are_refused(first, tmp_path):
    for name, words in (("a.npz", "cannot be read"), ("a.pt", "another kind"),
                        ("a.msgpack", "cannot be read"), ("a.safetensors", "cannot be read"),
                        ("none.npz", "there is no file")):  # fmt: skip
        if name != "none.npz":
            (tmp_path / name).write_bytes(b"\x00nothing")
        with pytest.raises(ValueError, match=f"{words}.*; give"):
            prepare.prepare(configured(**DIGITS, initial=str(tmp_path / name)))
    with pytest.raises(ValueError, match=r"cannot be read \(.* leaves parameters.npz\); give"):
        prepare.prepare(configured(**DIGITS, initial=str(first)))  # its folder
    path = first / records.PARAMETERS
    with pytest.raises(ValueError, match="--overwrite would remove"):
        train.run(configured(**DIGITS, initial=str(path)), first, overwrite=True)
    assert path.exists()


def test_a_record_names_no_code_but_what_the_command_names_or_trusts(first, tmp_path):
    config = records.read_json(first / records.CONFIG)
    config["delay"] = {"name": "no_such_module:law", "*": []}
    path = tmp_path / records.CONFIG
    records.write_json(path, config)
    with pytest.raises(ValueError, match="module 'no_such_module', which would run here; if you"):
        config_files.read(str(path))
    for law in (r"persistent(law='no_such_module\x3alaw')", "f(law='no_such_module' ':law')"):
        hidden = {"name": "spells", "law": law}
        records.write_json(tmp_path / "hidden.json", config | {"delay": hidden})
        with pytest.raises(ValueError, match="module 'no_such_module', which would run here"):
            config_files.read(str(tmp_path / "hidden.json"))
    named = "no_such_module:law(scale=1.0)"
    for flags, trusted in (
        ({"delay": named}, ()),
        ({"delay": "none"}, ()),
        ({}, ["no_such_module"]),
    ):
        assert config_files.read(str(path), flags, trusted).config.name == config["name"]


def test_a_record_is_a_config_and_takes_the_entry(first):
    path = str(first / records.PARAMETERS)
    file = config_files.read(str(first / records.CONFIG), {"initial": path, "seed": "3"})
    assert file.config.initial == path and file.config.seed == 3
    assert not hasattr(file.module, "sweep")
    again = config_files.read(str(first / records.CONFIG)).config
    assert train.run(again, first) == records.read_summary(first)  # it is that run
    for wrong, words in (
        (str(first / "summary.json"), "no run has written it.*; give a Python file"),
        ("sweep.yaml", "there is no file|a Python file or a run's config.json"),
        (str(first / records.CONFIG) + ":quick", "takes no argument"),
    ):
        with pytest.raises(ValueError, match=words):
            config_files.read(wrong)
