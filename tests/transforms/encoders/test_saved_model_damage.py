"""SavedModels that are damaged or misleading."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saved_models import CASED, save
from tampering import flip
from weights import refused

from layerbeam.transforms.encoders import EncoderError, open_encoder

pytestmark = pytest.mark.usefixtures("threads")


@pytest.mark.parametrize("content", [b"\xff" * 100, b"not a model", "half", "all but one byte"])
def test_graph_that_is_none(folder, content):
    path = folder / "saved_model.pb"
    whole = path.read_bytes()
    if isinstance(content, str):
        content = whole[: len(whole) // 2 if content == "half" else -1]
    path.write_bytes(content)
    message = refused(folder)
    assert f"{path}: is not a SavedModel (" in message
    assert message.endswith("download it again")


def test_empty_graph(folder):
    (folder / "saved_model.pb").write_bytes(b"")
    assert f"{folder / 'saved_model.pb'}: holds no objects of TensorFlow 2; take a newer version" in refused(folder)


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (0, "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"),
        (1000, "variables/0/.ATTRIBUTES/VARIABLE_VALUE"),
        (-50_000, r"variables/\d+/.ATTRIBUTES/VARIABLE_VALUE"),
        (-1, "_CHECKPOINTABLE_OBJECT_GRAPH"),
    ],
)
@pytest.mark.parametrize("engine", ["native", "savedmodel"])
def test_a_flipped_byte(folder, place, key, engine):
    flip(folder / "variables" / "variables.data-00000-of-00001", place)
    with pytest.raises(EncoderError, match=f"the variable {key} cannot be read .*[Cc]hecksum"):
        open_encoder(str(folder), engine=engine)


def test_variables_of_another_model(folder):
    shutil.copytree(CASED / "variables", folder / "variables", dirs_exist_ok=True)
    prefix = folder / "variables" / "variables"
    rest = "but saved_model.pb has one of [818, 64]; they do not belong together: download both again"
    assert refused(folder) == f"{folder}: {prefix}: word_embeddings/embeddings is [1445, 64], {rest}"
    shutil.copytree(save(folder.parent / "toy") / "variables", folder / "variables", dirs_exist_ok=True)
    assert refused(folder) == f"{folder}: {prefix}: no variable word_embeddings/embeddings, {rest}"


def damage(folder: Path, change: Callable[[Any], None]) -> None:
    """Change what saved_model.pb says, as bytes that got lost or somebody's hand would."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved = SavedModel()
    saved.ParseFromString((folder / "saved_model.pb").read_bytes())
    change(saved.meta_graphs[0])
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())


def lose_a_child(graph: Any) -> None:
    graph.object_graph_def.nodes[0].children[0].node_id = 1_000_000


def lose_an_asset(graph: Any) -> None:
    next(node for node in graph.object_graph_def.nodes if node.HasField("asset")).asset.asset_file_def_index = 77


def lose_inputs(graph: Any) -> None:
    for function in graph.object_graph_def.concrete_functions.values():
        if function.bound_inputs:
            function.bound_inputs[0] = 1_000_000


def lose_values(graph: Any) -> None:
    for function in graph.graph_def.library.function:
        for node in function.node_def:
            if node.op == "Const":
                node.attr["value"].Clear()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lose_a_child, "IndexError: "),
        (lose_an_asset, "IndexError: "),
        (lose_inputs, "IndexError: "),
        (lose_values, "TypeError: "),
    ],
)
def test_references_that_lead_nowhere(folder, change, said):
    damage(folder, change)
    error = refused(folder)
    assert error.startswith(f"{folder}: cannot be read ({said}")
    assert error.endswith("; download it again")
    assert "\n" not in error


def test_the_cause_of_what_cannot_be_read_is_kept(folder):
    damage(folder, lose_a_child)
    with pytest.raises(EncoderError) as caught:
        open_encoder(str(folder))
    assert isinstance(caught.value.__cause__, IndexError)


def test_our_own_mistakes_are_not_taken_for_damage(folder, monkeypatch):
    def mistaken(*arguments: Any, **named: Any) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr("layerbeam.transforms.encoders.formats.saved_model.open_folder", mistaken)
    with pytest.raises(AttributeError):
        open_encoder(str(folder))


def test_name_of_an_asset_that_is_too_long(folder):
    damage(folder, lambda graph: setattr(graph.asset_file_def[0], "filename", "n" * 400))
    assert refused(folder) == f"{folder}: {folder}/assets/{'n' * 400}: cannot be read: File name too long"


def test_identities_in_a_circle(folder):
    def tie(graph: Any) -> None:
        for function in graph.graph_def.library.function:
            for node in function.node_def:
                if node.op in ("Identity", "Reshape", "Cast") and node.input:
                    node.input[0] = f"{node.name}:output:0"

    damage(folder, tie)
    assert "does not read the output of" in open_encoder(str(folder)).engine_because
