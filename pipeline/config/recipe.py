"""The model's own recipe: what its files say of pooling, dense modules, scaling and prompts, where settings do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerbeam.pipeline.config.schema import EncoderConfig
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.encoders import EncoderError, EncoderSource, shown
from layerbeam.transforms.encoders.recipe import Model, named_prompts, read_folder
from layerbeam.transforms.views.view import ViewSettings

# What a setting is where neither a view nor the model's files say it.
_UNSAID: Mapping[str, Any] = {"pooling": "mean", "dense": [], "normalize": False}
_OF_RECIPE = (*_UNSAID, "truncate_dim")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings with nothing left open. `notes`: what the model's files say and the settings do not follow."""

    encoder: EncoderConfig
    views: Mapping[str, ViewSettings]
    notes: tuple[str, ...]


def complete(
    source: EncoderSource, encoder: EncoderConfig, views: Mapping[str, ViewSettings], unsaid: Mapping[str, Any]
) -> Recipe:
    """The settings, completed by the files of the model; where it has none, for texts by `unsaid`.

    A view of texts follows the model if it takes the last layer alone and says neither `pooling` nor `dense`.
    UsageError if the model cannot be followed.
    """
    folder = Path(source.folder)
    has_files = source.kind == "huggingface" and (folder / "modules.json").is_file()
    of_texts = [name for name, view in views.items() if has_files and _is_vector_of_text(view, source)]
    following = [name for name in of_texts if views[name].pooling is None and views[name].dense is None]
    of_records = [name for name, view in views.items() if has_files and view.level == "record"]
    model = _read(source.handle, folder, following) if of_texts or of_records else None
    completed, notes = dict[str, ViewSettings](), list[str]()
    for name, view in views.items():
        said = unsaid if view.level == "text" and not has_files else {}
        if model is not None and name in following:
            said = model.view
        completed[name] = _complete_view(view, {**_UNSAID, **said})
        if model is not None and name in (*of_texts, *of_records) and name not in following:
            notes += _differences(name, completed[name], model.view)
    default = model.encoder.get("prompt") if model is not None and (following or of_records) else None
    named = named_prompts(folder)
    prompted = _complete_prompts(encoder, default, named, has_files=has_files)
    return Recipe(prompted, completed, (*notes, *_unused_prompts(encoder, prompted, named)))


def _complete_view(view: ViewSettings, said: Mapping[str, Any]) -> ViewSettings:
    """The view with what is said of the settings that it leaves open."""
    left_open = {name: value for name, value in said.items() if name in _OF_RECIPE and getattr(view, name) is None}
    return dataclasses.replace(view, **left_open)


def _complete_prompts(
    encoder: EncoderConfig, default: str | None, named: Mapping[str, str], *, has_files: bool
) -> EncoderConfig:
    """The settings with the prompts of texts, by `default`, and of queries, which have that of texts if it is set."""
    query = encoder.query_prompt
    if query is None and ("query" in named or (has_files and encoder.prompt is None)):
        query = named.get("query", "")
    prompt = default if encoder.prompt is None else encoder.prompt
    return dataclasses.replace(encoder, prompt=prompt, query_prompt=query)


def _unused_prompts(given: EncoderConfig, chosen: EncoderConfig, named: Mapping[str, str]) -> Iterator[str]:
    """The prompts of a model that are not used, in one line, unless the settings give one."""
    used = ("", chosen.prompt, chosen.query_prompt)
    unused = [f"{name} ({shown(text)})" for name, text in named.items() if text not in used]
    if unused and given.prompt is None:
        yield f"encoder.prompt: the model's files have prompts that are not used: {', '.join(unused)}"


def _is_vector_of_text(view: ViewSettings, source: EncoderSource) -> bool:
    """Whether a view has one vector of the last layer, of all tokens, for each text."""
    whole = view.special_tokens and not view.skip_tokens and view.pooling not in ("none", "pooler")
    return view.level == "text" and whole and view.layers in ([-1], [source.num_hidden_layers])


def _read(handle: str, folder: Path, following: Sequence[str]) -> Model | None:
    """What the model's files say; None if they cannot be followed, and no view must."""
    try:
        model = read_folder(handle, folder)
    except EncoderError as error:
        if not following:
            return None
        raise UsageError(
            f"views.{following[0]}.pooling: is not set, and the model's own files cannot be followed: {error}; set "
            "pooling, dense and normalize to take the encoder alone"
        ) from error
    if model.view["pooling"] == "none" and following:
        raise UsageError(
            f"views.{following[0]}.pooling: is not set, and {handle} is a late interaction model, with a list "
            f"of vectors for each text: `layerbeam init --from {handle}` writes its settings"
        )
    return None if model.view["pooling"] == "none" else model


def _differences(name: str, view: ViewSettings, said: Mapping[str, Any]) -> Iterator[str]:
    """How a view differs from what the model's files say, in one line. One of records has its own `normalize`."""
    fields = ("pooling", "dense") if view.level == "record" else tuple(_UNSAID)
    ours = {field: getattr(view, field) for field in fields}
    theirs = {field: said.get(field, _UNSAID[field]) for field in fields}
    if ours != theirs:
        own, other = (", ".join(f"{field} {shown(value)}" for field, value in one.items()) for one in (ours, theirs))
        is_what = "level record is the mean of the tokens of its texts" if view.level == "record" else f"has {own}"
        yield f"views.{name}: {is_what}; the model's own files say {other}"
