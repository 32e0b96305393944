"""What a model's own files say, where the settings say nothing: of vectors, prompts, queries, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from architectures import write_encoder
from repository import DATA

import layerbeam

TEXTS = ["a river bank", "the bank of money paid"]
LAST = {"level": "text", "layers": [-1]}
PREFIX = "sentence_transformers.models."


@pytest.fixture
def model(tmp_path):
    """A function that writes a model's folder: its pooling, whether Normalize follows, its prompts."""

    def write(pooling: str = "cls", *, normalize: bool = False, **whole: object) -> str:
        folder = tmp_path / "model"
        shutil.copytree(DATA / "hf_uncased", folder, dirs_exist_ok=True)
        names = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
        paths = ["", "1_Pooling", "2_Normalize"]
        modules = [
            {"idx": number, "name": str(number), "path": path, "type": PREFIX + name}
            for number, (name, path) in enumerate(zip(names, paths, strict=False))
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": pooling}))
        (folder / "config_sentence_transformers.json").write_text(json.dumps(whole))
        return str(folder)

    return write


def vectors(view: dict[str, object], encoder: dict[str, object] | str = str(DATA / "hf_uncased")) -> np.ndarray:
    return layerbeam.encode(TEXTS, encoder=encoder, views={"v": view})["v"]["layer_3"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("cls", "cls"), ("lasttoken", "last"), ("weightedmean", "weighted_mean"), ("mean", "mean"), ("max", "max")],
)
@pytest.mark.parametrize("normalize", [False, True])
def test_every_way_follows_the_model(model, theirs, ours, normalize):
    folder = model(theirs, normalize=normalize)
    expected = vectors(LAST | {"pooling": ours, "normalize": normalize})
    np.testing.assert_array_equal(layerbeam.encode(TEXTS, encoder=folder), expected)
    np.testing.assert_array_equal(vectors(LAST, folder), expected)
    np.testing.assert_array_equal(vectors({"level": "text", "layers": [3]}, folder), expected)
    handler = layerbeam.Embeddings(["text"], encoder=folder).get_model_handler()
    in_beam = handler.run_inference(TEXTS, handler.load_model())
    np.testing.assert_array_equal(np.array(in_beam, np.float32), expected)


def test_a_run_follows_the_model_unless_a_view_says_otherwise(model, workplace):
    folder = model("cls", normalize=True)
    views = {
        "own": LAST,
        "middle": {"level": "text", "layers": [1]},
        "mean": LAST | {"pooling": "mean"},
        "scaled": LAST | {"normalize": False},
    }
    workplace.prepare("\n".join(TEXTS), encoder={"handle": folder}, views=views)
    note = (
        'views.mean: has pooling "mean", dense [], normalize false; the model\'s own files say pooling "cls", '
        "dense [], normalize true"
    )
    assert note in " ".join(workplace.plan().out.split())
    assert note in " ".join(workplace.drive().out.split())
    run = layerbeam.open_run("out")
    cls, mean = vectors(LAST | {"pooling": "cls"}), vectors(LAST | {"pooling": "mean"})
    np.testing.assert_array_equal(run["own"].to_numpy("layer_3"), vectors(LAST | {"pooling": "cls", "normalize": True}))
    np.testing.assert_array_equal(run["scaled"].to_numpy("layer_3"), cls)
    np.testing.assert_array_equal(run["mean"].to_numpy("layer_3"), mean)
    middle = {"level": "text", "layers": [1], "pooling": "mean"}
    expected = layerbeam.encode(TEXTS, encoder=folder, views={"v": middle})["v"]["layer_1"]
    np.testing.assert_array_equal(run["middle"].to_numpy("layer_1"), expected)
    assert run.manifest["settings"]["views"]["own"]["pooling"] == "cls"
    workplace.verify()


def test_an_encoder_that_says_nothing_is_averaged():
    handle = str(DATA / "hf_uncased")
    expected = vectors(LAST | {"pooling": "mean", "normalize": True})
    np.testing.assert_array_equal(layerbeam.encode(TEXTS, encoder=handle), expected)
    np.testing.assert_array_equal(vectors(LAST), vectors(LAST | {"pooling": "mean"}))


def test_prompts_of_texts_and_of_queries(model, workplace):
    prompts = {"query": "river: ", "document": "bank: ", "passage": "money: "}
    folder = model("mean", prompts=prompts, default_prompt_name="document")

    def prompted(prompt: str) -> np.ndarray:
        return vectors(LAST | {"pooling": "mean"}, {"handle": str(DATA / "hf_uncased"), "prompt": prompt})

    np.testing.assert_array_equal(layerbeam.encode(TEXTS, encoder=folder), prompted("bank: "))
    np.testing.assert_array_equal(layerbeam.encode(TEXTS, encoder=folder, as_query=True), prompted("river: "))
    no_prompt = layerbeam.encode(TEXTS, encoder={"handle": folder, "prompt": ""})
    np.testing.assert_array_equal(no_prompt, vectors(LAST | {"pooling": "mean"}))
    workplace.finished("\n".join(TEXTS), encoder={"handle": folder}, views={"v": LAST})
    run = layerbeam.open_run("out")
    np.testing.assert_array_equal(run["v"].to_numpy("layer_3"), prompted("bank: "))
    np.testing.assert_array_equal(run.encode(TEXTS), prompted("bank: "))
    np.testing.assert_array_equal(run.encode(TEXTS, as_query=True), prompted("river: "))
    np.testing.assert_array_equal(run.encode(TEXTS, prompt="passage"), prompted("money: "))
    np.testing.assert_array_equal(run.encode(TEXTS, prompt="steep: "), prompted("steep: "))
    for arguments, prompt in (([], "river: "), (["--prompt", "passage"], "money: "), (["--prompt", ""], "")):
        done = workplace._call("search", "out", "--text", TEXTS[0], "--json", "--metric", "dot", *arguments, status=0)
        (query,) = json.loads(done.out)["queries"]
        (row,) = [row for row in query["nearest"] if row["line"] == 1]
        assert row["score"] == pytest.approx(float(prompted(prompt)[0] @ prompted("bank: ")[1]), rel=1e-5)


@pytest.mark.parametrize("inner", ["", "0_Transformer"])
@pytest.mark.parametrize("query", ["", "river: "])
def test_init_writes_the_prompt_of_queries(model, workplace, query, inner):
    prompts = {"query": query, "passage": "bank: ", "title": "money: "}
    folder = Path(model("mean", prompts=prompts, default_prompt_name="passage"))
    if inner:
        (folder / inner).mkdir()
        for file in ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"):
            if (folder / file).exists():
                (folder / file).rename(folder / inner / file)
        modules = json.loads((folder / "modules.json").read_text())
        modules[0]["path"] = inner
        (folder / "modules.json").write_text(json.dumps(modules))
    workplace.write("corpus/a.txt", "\n".join(TEXTS))
    printed = workplace._call("init", "new.yaml", "--from", str(folder), "--input", "corpus/*.txt", status=0).err
    assert "has more prompts, which --prompt NAME chooses: title\n" in printed
    workplace.driven("run", "new.yaml", "--output", "out")
    run = layerbeam.open_run("out")

    def prompted(prompt: str) -> np.ndarray:
        return vectors(LAST | {"pooling": "mean"}, {"handle": str(DATA / "hf_uncased"), "prompt": prompt})

    np.testing.assert_array_equal(run["sentences"].to_numpy("layer_3"), prompted("bank: "))
    np.testing.assert_array_equal(run.encode(TEXTS, as_query=True), prompted(query))
    np.testing.assert_array_equal(run.encode(TEXTS, prompt="passage"), prompted("bank: "))


def test_a_folder_without_modules_has_no_prompts(model):
    folder = Path(model("mean", prompts={"query": "river: "}))
    (folder / "modules.json").unlink()
    np.testing.assert_array_equal(
        layerbeam.encode(TEXTS, encoder=str(folder), as_query=True), layerbeam.encode(TEXTS, encoder=str(folder))
    )


def test_a_changed_pooling_is_loaded_again(model):
    folder = Path(model("mean"))
    before = layerbeam.encode(TEXTS, encoder=str(folder))
    file = folder / "1_Pooling" / "config.json"
    file.write_text(file.read_text().replace('"mean"', '"cls"') + " ")
    assert not np.array_equal(layerbeam.encode(TEXTS, encoder=str(folder)), before)


def test_a_prompt_of_queries_that_pooling_leaves_out_is_refused(model):
    folder = Path(model("mean", prompts={"query": "river: "}))
    file = folder / "1_Pooling" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"include_prompt": False}))
    with pytest.raises(ValueError, match=r"include_prompt is false; it must be true, because"):
        layerbeam.encode(TEXTS, encoder=str(folder), as_query=True)


def test_a_view_of_records_says_that_it_does_not_follow_the_model(model, workplace):
    views = {"documents": {"level": "record", "layers": [-1]}}
    workplace.prepare("\n".join(TEXTS), encoder={"handle": model("cls")}, views=views, input={"unit": "sentence"})
    note = (
        'views.documents: level record is the mean of the tokens of its texts; the model\'s own files say pooling "cls"'
    )
    assert note in " ".join(workplace.drive().out.split())


def test_a_prompt_spelled_like_a_name_is_questioned(model, workplace):
    folder = model("mean", prompts={"passage": "bank: "})
    workplace.finished("\n".join(TEXTS), encoder={"handle": folder}, views={"v": LAST})
    done = workplace._call("search", "out", "--text", TEXTS[0], "--prompt", "pasage", status=0)
    assert (
        "prompt: pasage is not the name of a prompt of the model, and put before the text; did you mean `passage`?"
        in (" ".join(done.err.split()))
    )


def test_a_prompt_of_one_s_own_is_that_of_queries_too(workplace):
    encoder = {"handle": str(DATA / "hf_uncased"), "prompt": "bank: "}
    workplace.finished("\n".join(TEXTS), encoder=encoder, views={"v": LAST})
    run = layerbeam.open_run("out")
    np.testing.assert_array_equal(run.encode(TEXTS, as_query=True), run["v"].to_numpy("layer_3"))
    workplace.configure(encoder=encoder | {"query_prompt": "river: "}, views={"v": LAST})
    assert "nothing to do" in workplace.drive().err


def test_prompts_that_are_not_used_are_named(model, workplace):
    folder = model("mean", prompts={"document": "bank: "})
    done = workplace.finished("\n".join(TEXTS), encoder={"handle": folder}, views={"v": LAST})
    note = 'encoder.prompt: the model\'s files have prompts that are not used: document ("bank: ")'
    assert note in " ".join(done.out.split())


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_left_truncation_is_refused_by_all_ways(workplace, name):
    folder = workplace.folder / "model"
    write_encoder(folder, name)
    if name == "bert":
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "truncation_side": "left"}))
    else:
        content = json.loads((folder / "tokenizer.json").read_text())
        left = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
        (folder / "tokenizer.json").write_text(json.dumps(content | {"truncation": left}))
    message = "truncation_side: left"
    with pytest.raises(ValueError, match=message):
        layerbeam.encode(TEXTS, encoder=str(folder))
    with pytest.raises(ValueError, match=message):
        layerbeam.Embeddings(["text"], encoder=str(folder))
    workplace.prepare("\n".join(TEXTS), encoder={"handle": str(folder)}, views={"v": {"level": "token", "layers": [1]}})
    assert message in workplace.drive(status=2).err
    workplace.drive("--set", "encoder.long_text=reject")


def test_a_model_that_cannot_be_followed_is_refused_unless_the_view_says_how(model):
    folder = model("attention")
    message = (
        r"views\.vectors\.pooling: is not set, and the model's own files cannot be followed: .*1_Pooling/config\.json"
    )
    with pytest.raises(ValueError, match=message):
        layerbeam.encode(TEXTS, encoder=folder)
    np.testing.assert_array_equal(vectors(LAST | {"pooling": "mean"}, folder), vectors(LAST | {"pooling": "mean"}))


def test_a_late_interaction_model_has_no_vector_of_a_text(model):
    folder = model("mean", model_type="MultiVectorEncoder")
    modules = [{"idx": 0, "name": "0", "path": "", "type": PREFIX + "Transformer"}]
    Path(folder, "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=r"views\.vectors\.pooling: is not set, and "):
        layerbeam.encode(TEXTS, encoder=folder)
