"""The dataset card of a run: the README.md of a dataset on Hugging Face's Hub, with a configuration for each view."""

from __future__ import annotations

import os
import re

import yaml

from layerbeam.pipeline.console import count_noun
from layerbeam.pipeline.dataset.reader import Run
from layerbeam.pipeline.dataset.view import View, shape_text
from layerbeam.pipeline.encoder.known_encoders import licence_of
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.parts import PART_FORMATS
from layerbeam.transforms.views.number_types import scale_of
from layerbeam.transforms.views.view import COLUMNS

# A card without this line is somebody's own, and is not rewritten.
MARK = "<!-- Written by `layerbeam publish`, which rewrites it. Remove this line to keep a text of your own. -->"
# A view with more files has folders for them: the Hub takes 10,000 in one.
MOST_FILES = 5000
_NAMED = 10  # input files
_MEANINGS = {column.name: column.meaning for column in COLUMNS}


def digits_of_folders(view: View) -> int:
    """How many digits of the SHA-256 of its files name the folders that a published view has; 0: it has none."""
    return next(digits for digits in range(16) if len(view.parts) <= MOST_FILES * 16**digits)


def render_card(run: Run, repository: str | None) -> str:
    """The card, in Markdown. `repository`: its name on the Hub; None: it is not known yet."""
    name = repository or "org/name"
    commit = f" at `{run.manifest['encoder']['commit']}`" if "commit" in run.manifest["encoder"] else ""
    encoder, version = run.manifest["encoder"], run.manifest.get("versions", {}).get("layerbeam", "")
    views = [run.view(view) for view in run]
    # The library datasets takes the format of the first configuration for all, and fails on files without rows (5.2).
    with_rows = [view for view in views if len(view)]
    of_format = {format_: [view for view in with_rows if view.format == format_] for format_ in ("parquet", "jsonl")}
    loaded = of_format["parquet"] or of_format["jsonl"]
    configs = [{"config_name": view.name, "data_files": f"{view.name}/{_files(view)}"} for view in loaded]
    front = yaml.safe_dump({"tags": ["embeddings", "layerbeam"], "configs": configs}, sort_keys=False, width=1000)
    inputs = run.manifest["settings"]["input"]["files"]
    made_by = f"layerbeam {version}".strip()
    records = count_noun(run.manifest["counts"].get(metrics.EMBEDDED, 0), "record")
    lines = [
        f"---\n{front}---\n{MARK}\n",
        f"# {name.rpartition('/')[2]}\n",
        f"Vectors of {records} from the encoder `{encoder['handle']}`, {shape_text(encoder)}, computed by {made_by}.\n",
        "| | |\n|---|---|",
        f"| encoder | `{encoder['handle']}`{commit}; its licence: {_licence(encoder['handle'])} |",
        *([f"| adapter | `{encoder['adapter']}` |"] if encoder.get("adapter") else []),
        f"| input | {', '.join(f'`{path}`' for path in inputs[:_NAMED])}{', ...' if len(inputs) > _NAMED else ''} |",
        f"| fingerprint | `{run.manifest['fingerprint']}`: encoder and settings, all of which `manifest.json` has |",
    ]
    for view in views:
        lines += ["", *_describe(view)]
    lines += ["", "## Read it", ""]
    if loaded:
        lines += [
            "```python\nfrom datasets import load_dataset\n",
            f'rows = load_dataset("{name}", "{loaded[0].name}", split="train")\n```\n',
        ]
    lines += [
        "```python\nimport huggingface_hub\nimport layerbeam\n",
        f'run = layerbeam.open_run(huggingface_hub.snapshot_download("{name}", repo_type="dataset"))',
        f'table = run["{views[0].name}"].to_arrow()\n```\n',
        "## Cite it\n",
        "Cite the encoder and the corpus, and this dataset, with the commit that you used:\n",
        "```bibtex\n@misc{" + re.sub(r"\W", "_", name) + ",",
        f"  title = {{{name.rpartition('/')[2]}}},",
        f"  note = {{vectors from {encoder['handle']}; {made_by}, fingerprint {run.manifest['fingerprint']}}},",
        f"  howpublished = {{https://huggingface.co/datasets/{name}}}",
        "}\n```",
    ]
    return "\n".join(lines) + "\n"


def _describe(view: View) -> list[str]:
    """A section about a view."""
    lines = [
        f"## {view.name}\n",
        f"{count_noun(view.num_rows, 'row')}, one per {view.level}.\n",
        "| column | type | meaning |\n|---|---|---|",
    ]
    for name, type_ in view.entry["columns"].items():
        vector = name in view.vectors
        meaning = "vector" if vector else _MEANINGS.get(name, "")
        if not meaning and name in map(scale_of, view.vectors):
            meaning = "number by which the codes of the vector are multiplied"
        lines.append(f"| `{name}` | `{type_}` | {meaning or 'copied from the input'} |")
    return lines


def _files(view: View) -> str:
    """The glob of its files."""
    suffix = PART_FORMATS[view.format].suffix
    gzipped = ".gz" if any(part.path.endswith(".gz") for part in view.parts[:1]) else ""
    return f"{'*/' if digits_of_folders(view) else ''}*{suffix}{gzipped}"


def _licence(handle: str) -> str:
    """The licence of the encoder: as known, or as the README.md of its local folder says."""
    found: object = licence_of(handle)
    readme = os.path.join(handle, "README.md")
    if found is None and "://" not in handle and os.path.isfile(readme):
        with open(readme, encoding="utf-8", errors="replace") as file:
            front = re.match(r"---\n(.*?)\n---\n", file.read(1 << 16), re.DOTALL)
        try:
            about = yaml.safe_load(front[1]) if front is not None else None
        except (yaml.YAMLError, RecursionError):
            about = None
        found = about.get("license") if isinstance(about, dict) else None
    is_name = isinstance(found, str) and re.fullmatch(r"[\w.+-]{1,40}", found)
    return str(found) if is_name else "unknown; look at its page"
