"""The mistakes that other engines make, made here: the canary texts encoded with another prompt, pooling, layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from layerbeam.pipeline.check.diagnosis import QUERY_PROMPT, Candidate, Difference
from layerbeam.pipeline.config.job import EmbedJob
from layerbeam.pipeline.dataset.canaries import encode_canaries
from layerbeam.transforms.encode.forward import Forward
from layerbeam.transforms.encoders.recipe import named_prompts
from layerbeam.transforms.views.view import TextPooling, ViewSpec

_POOLINGS: tuple[TextPooling, ...] = ("mean", "cls", "last", "max", "weighted_mean")
_LENGTHS = (128, 256, 384, 512, 1024)


def encode_variants(job: EmbedJob, view: ViewSpec, column: str, texts: Sequence[str]) -> Iterator[list[Candidate]]:
    """A list for each way to treat the texts, the run's own first: a candidate for each way to make vectors of them.

    The first candidate of the first list has no difference. UsageError and EncoderError if the encoder is not here.
    """
    views = [dataclasses.replace(made, name=str(number)) for number, made in enumerate(_other_views(job, view))]
    job = dataclasses.replace(job, views=tuple(views))
    job.load_tensorflow(1)
    forward = Forward(job.load_encoder())
    for treated, treated_job, given in _other_texts(job, texts):
        encoded, vectors = encode_canaries(treated_job, forward, given)
        if len(encoded) == len(texts):
            hides_prompt = bool(treated_job.sequences.prompt)
            yield [
                Candidate(values, (*treated, *_of_view(view, made, column, own, hides_prompt=hides_prompt)))
                for made in views
                for own, values in vectors[made.name].items()
                if made.combine != view.combine or made is not views[0] or own == column
            ]


def _other_views(job: EmbedJob, view: ViewSpec) -> Iterator[ViewSpec]:
    """The view, and the views that other poolings, special tokens, layers and dense modules give."""
    yield view
    if job.encoder.has_pooler and not view.uses_pooler:
        yield dataclasses.replace(view, pooling="pooler", layers=(), given_layers=(), dense=[], dense_modules=())
    layers = tuple(job.encoder.layers) or view.layers
    each = dataclasses.replace(view, combine="separate", layers=layers, given_layers=layers)
    for spec in (view, each) if view.combine != "separate" else (each,):
        for pooling in dict.fromkeys([view.pooling, *_POOLINGS]):
            if pooling == "pooler" or (pooling == "cls" and not job.encoder.special.before):
                continue
            for special in (True, False):
                made = dataclasses.replace(spec, pooling=pooling, special_tokens=special)
                if not view.dense or made.pooled_width == view.dense_modules[0].in_features:
                    yield made
                if view.dense:
                    yield dataclasses.replace(made, dense=[], dense_modules=())


def _of_view(view: ViewSpec, made: ViewSpec, column: str, own: str, *, hides_prompt: bool) -> Iterator[Difference]:
    """How the vectors `own` of a view that was made differ from `column` of the run's view.

    `hides_prompt`: whether tokens of the prompt count as special ones.
    """
    if made.uses_pooler and not view.uses_pooler:
        yield Difference("pooling", f"the pooled output instead of pooling {view.pooling}")
        return
    if made.pooling != view.pooling:
        yield Difference("pooling", f"pooling {made.pooling} instead of {view.pooling}")
    if made.special_tokens != view.special_tokens and made.pooling != "cls":
        what = "special tokens and prompt" if hides_prompt else "special tokens"
        here, there = ("with", "without") if made.special_tokens else ("without", "with")
        yield Difference("special tokens", f"pooling {here} {what}, and the run's is {there} them")
    if made.dense != view.dense:
        yield Difference("dense", f"without the dense modules {', '.join(view.dense)}")
    if own != column:
        several = f"the {view.combine} of layers {', '.join(map(str, view.layers))}"
        instead = column.removeprefix("layer_") if view.combine == "separate" else several
        yield Difference("layer", f"layer {own.removeprefix('layer_')} instead of {instead}")


def _other_texts(
    job: EmbedJob, texts: Sequence[str]
) -> Iterator[tuple[tuple[Difference, ...], EmbedJob, Sequence[str]]]:
    """(the difference, the job, the texts): as the run treats texts, and as others do."""
    encoder = job.config.encoder
    yield (), job, texts
    own = encoder.prompt or ""
    if own:  # where its tokens are not among the special ones
        yield (), *_with_prompt(job, own, texts)
    named = named_prompts(Path(job.encoder.folder))
    prompts = {"": "no prompt", **{prompt: f"{name!r} of the model" for name, prompt in named.items()}}
    prompts |= {encoder.query_prompt or "": "that of queries"}
    for prompt, name in prompts.items():
        if prompt != own:
            which = f"prompt {prompt!r}, {name}," if prompt else "no prompt"
            kind = QUERY_PROMPT if prompt == encoder.query_prompt else "prompt"
            difference = Difference(kind, f"{which} instead of {repr(own) if own else 'none'}")
            yield (difference,), *_with_prompt(job, prompt, texts)
    for other in _other_lengths(job):
        cut = dataclasses.replace(job.config, encoder=dataclasses.replace(encoder, max_seq_length=other))
        difference = Difference("length", f"texts cut off after {other:,} tokens instead of {job.max_seq_length:,}")
        yield (difference,), dataclasses.replace(job, config=cut), texts
    if job.encoder.do_lower_case and job.encoder.tokenizer == "tensorflow_text":
        cased = dataclasses.replace(job, encoder=dataclasses.replace(job.encoder, do_lower_case=False))
        yield (Difference("case", "texts not lower-cased, and the run's are"),), cased, texts
    else:
        difference = Difference("case", "texts lower-cased, and the run's are not")
        yield (difference,), job, [text.lower() for text in texts]
    for change in (str.strip, lambda text: text.replace("\n", " "), lambda text: " ".join(text.split())):
        yield (Difference("white space", "white space of the texts changed"),), job, [change(text) for text in texts]


def _other_lengths(job: EmbedJob) -> list[int]:
    """What others may set `max_seq_length` to. None where the run cuts nothing off."""
    if job.config.encoder.of_long_text != "truncate":
        return []
    positions = job.encoder.max_position_embeddings
    lengths = [length for length in _LENGTHS if positions is None or length < positions]
    return [length for length in (*lengths, positions) if length and length != job.max_seq_length]


def _with_prompt(job: EmbedJob, prompt: str, texts: Sequence[str]) -> tuple[EmbedJob, Sequence[str]]:
    """The job and the texts with a prompt that is pooled as the text is, unless it begins with a marker."""
    prompted = job.with_prompt(prompt)
    return (prompted, texts) if prompted.encoder.marker else (job.with_prompt(""), [prompt + text for text in texts])
