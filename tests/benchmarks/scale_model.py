"""What a run of any size needs, calculated from the measurements of `measure_scale.py` and the assumptions below.

Arithmetic only: nothing is measured here and no cloud is used.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

TOKENS = (1e6, 1e9, 100e9)
LEVELS = ("token", "text")
SLICE_BYTES = 1 << 20  # the default of input.slice_bytes
MINUTE, HOUR = 60, 3600


@dataclasses.dataclass(frozen=True)
class Size:
    """Dimensions of an encoder: number of Transformer blocks, hidden size, inner size of the feed-forward layers."""

    layers: int
    hidden: int
    inner: int

    @property
    def flops_per_token(self) -> int:
        """Of the products with weights only; those of attention are few for texts of one line."""
        return 2 * self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.inner)


ENCODERS = {"MiniLM": Size(6, 384, 1536), "BERT-base size": Size(12, 768, 3072)}


@dataclasses.dataclass(frozen=True)
class Assumption:
    """A number that was not measured here, and the reason for its value."""

    value: float | None
    unit: str
    why: str


_LIST = "list price, us-central1, September 2026, from secondary sources; replace it by yours"
_COUNTED = "counted once: Beam 2.77 and Google's client, against a stand-in for Cloud Storage"
ASSUMED = {
    "file": Assumption(1e9, "bytes of text in an input file", "a corpus in shards; for one huge file see the limits"),
    "cpu workers": Assumption(None, "1, 50, 1,000", "for 1 M, 1 B, 100 B tokens"),
    "cpu vcpus": Assumption(8, "vCPUs of a CPU worker", "n2-standard-8, one process and one thread for each vCPU"),
    "cpu memory": Assumption(32, "GB of a CPU worker", "n2-standard-8"),
    "vcpu": Assumption(
        0.5,
        "of the measured core, in a vCPU",
        "a vCPU is a hyperthread: half a core, of an older processor than this one",
    ),
    "l4 workers": Assumption(None, "1, 4, 100", "for 1 M, 1 B, 100 B tokens"),
    "l4 vcpus": Assumption(8, "vCPUs of an L4 worker", "g2-standard-8, one process"),
    "l4 memory": Assumption(32, "GB of an L4 worker", "g2-standard-8"),
    "l4 threads": Assumption(8, "blocks at a time on an L4 worker", "hides reading and writing behind the GPU"),
    "l4 peak": Assumption(
        121e12, "FLOP/s of an L4 in bfloat16", "NVIDIA's data sheet, without sparsity; TF32 is half as fast"
    ),
    "l4 share": Assumption(
        0.25,
        "of the peak is reached",
        "a guess from its memory: 300 GB/s move the activations of BERT-base's size (about 1 MB per token, not "
        "fused) in 3.5 us, and its products take 2.3 us at 60 % of the peak: 1.4 of 5.8 us. Small encoders reach less. "
        "No GPU was available",
    ),
    "upload": Assumption(300e6, "bytes/s that one worker writes to gs://", "a guess: several Beam uploads at once"),
    "request": Assumption(0.05, "s for one request to gs://", "a guess: within the region"),
    "page": Assumption(0.3, "s for one page of a listing, of 1,000 objects", "a guess"),
    "deleted at once": Assumption(100, "commits deleted with one request", _COUNTED),
    "deletion": Assumption(1, "s for a request that deletes them", "a guess"),
    "open requests": Assumption(3, "requests to read one small object", _COUNTED),
    "opened at once": Assumption(32, "commits read at once", "_FILES_AT_ONCE in pipeline/output/commits.py"),
    "scaled in": Assumption(None, "all workers but one", "are released while the one element of `finish` is processed"),
    "start": Assumption(
        6 * MINUTE, "s until Dataflow's workers have the container", "a guess: an image with TensorFlow"
    ),
    "vcpu price": Assumption(0.056, "$ per vCPU and hour", f"Dataflow, batch: {_LIST}"),
    "memory price": Assumption(0.003557, "$ per GB and hour", f"Dataflow, batch: {_LIST}"),
    "l4 price": Assumption(0.672048, "$ per L4 and hour", f"Dataflow: {_LIST}"),
    "disk price": Assumption(50 * 0.000054, "$ per disk of 50 GB and hour, one per worker", f"Dataflow: {_LIST}"),
    "shuffle price": Assumption(0.011, "$ per GB shuffled", f"Dataflow: {_LIST}"),
    "storage price": Assumption(
        0.020, "$ per GB and month", "gs://, Standard, one region: not looked up; replace it by yours"
    ),
}
CPU_WORKERS = dict(zip(TOKENS, (1, 50, 1000), strict=True))
L4_WORKERS = dict(zip(TOKENS, (1, 4, 100), strict=True))


def assumed(name: str) -> float:
    value = ASSUMED[name].value
    assert value is not None
    return value


@dataclasses.dataclass(frozen=True)
class Job:
    """A number of tokens through an encoder, with one float32 layer per token or text."""

    measured: dict[str, Any]
    encoder: str
    level: str
    tokens: float

    @property
    def _flow(self) -> dict[str, Any]:
        return self.measured["flow"][f"{self.encoder}, {self.level}"]

    def _speed(self, dtype: str) -> dict[str, Any]:
        return self.measured["speed"][f"{self.encoder}, {dtype}, {self.level}"]

    def scaled(self, figure: float) -> float:
        """A count of the measured corpus, scaled to this one."""
        return figure * self.tokens / self._flow["encoded_tokens"]

    @property
    def text_bytes(self) -> float:
        return self.scaled(self._flow["text_bytes"])

    @property
    def files(self) -> int:
        return math.ceil(self.text_bytes / assumed("file"))

    @property
    def ranges(self) -> int:
        return math.ceil(self.text_bytes / SLICE_BYTES)

    @property
    def blocks(self) -> int:
        return math.ceil(self.scaled(self._flow["blocks"]))

    @property
    def rows(self) -> float:
        return self.scaled(self._flow["views"]["v"]["rows"])

    @property
    def part_bytes(self) -> float:
        """Bytes on disk, with the bytes per row of the last layer: those of the counted layer 0 compress better."""
        view = self._speed("float32")["views"]["v"]
        return self.rows * view["bytes"] / view["rows"]

    @property
    def shuffled(self) -> dict[str, float]:
        """Bytes through each shuffle."""
        return {name: self.scaled(size) for name, size in self._flow["shuffled_bytes"].items()}

    @property
    def edges(self) -> dict[str, float]:
        """Elements on each edge of pipeline/build.py: the number of files, ranges or blocks."""
        return {
            "find: files": self.files,
            "slice: ranges scanned": self.ranges,
            "slice: slices": self.blocks,
            "read, tokenize, encode: blocks": self.blocks,
            "write: commits": self.blocks,
            "reports: commits and files": self.blocks + self.files,
            "all together, finish": 1,
        }

    # Hours.

    def _waves(self, workers: int, threads: float, rate: float) -> float:
        """Seconds: each thread processes one block at a time; the last blocks end with idle threads."""
        block_seconds = self.tokens / self.blocks / (rate / threads)
        return math.ceil(self.blocks / (workers * threads)) * block_seconds

    def cpu_rate(self, dtype: str = "float32") -> float:
        """Tokens per second of a worker."""
        speed = self._speed(dtype)
        per_core = speed["encoded_tokens"] / speed["processor_seconds"]
        return per_core * assumed("vcpu") * assumed("cpu vcpus")

    @property
    def cpu_seconds(self) -> float:
        return self._waves(CPU_WORKERS[self.tokens], assumed("cpu vcpus"), self.cpu_rate())

    @property
    def block_seconds(self) -> float:
        """Seconds for one block on one vCPU."""
        return self.tokens / self.blocks / (self.cpu_rate() / assumed("cpu vcpus"))

    def l4_limits(self) -> dict[str, float]:
        """Tokens per second of a worker, for each possible bottleneck."""
        host = self._flow["processor_seconds"] / self._flow["encoded_tokens"]
        return {
            "GPU": assumed("l4 peak") * assumed("l4 share") / ENCODERS[self.encoder].flops_per_token,
            "vCPUs": assumed("vcpu") * assumed("l4 vcpus") / host,
            "upload": assumed("upload") / (self.part_bytes / self.tokens),
        }

    @property
    def l4_seconds(self) -> float:
        return self._waves(L4_WORKERS[self.tokens], assumed("l4 threads"), min(self.l4_limits().values()))

    def load_seconds(self, dtype: str = "float32") -> float:
        load = self.measured["load"][f"{self.encoder}, {dtype}"]
        return (load["import_seconds"] + load["load_seconds"]) / assumed("vcpu")

    # The two ends of a run.

    def per_commit(self, stage: str, figure: str) -> float:
        """The cost of one more commit."""
        few, many = self.measured["machine"]["commits"] // 10, self.measured["machine"]["commits"]
        ends = self.measured["ends"]
        return (ends[f"{stage}, {many}"][figure] - ends[f"{stage}, {few}"][figure]) / (many - few)

    def end_memory(self, stage: str) -> float:
        return self.blocks * self.per_commit(stage, "memory_bytes")

    def end_computing(self, stage: str) -> float:
        return self.blocks * self.per_commit(stage, "seconds") / assumed("vcpu")

    def end_requests(self, stage: str) -> float:
        """Seconds on gs://."""
        pages = math.ceil(self.blocks / 1000) * assumed("page")
        if stage == "find":  # commits and parts are listed
            counted = self.measured["store_requests"][stage]
            requests = counted["open"] * assumed("open requests") / assumed("opened at once")
            return 2 * pages + self.blocks * requests * assumed("request")
        # Parts are listed twice, commits three times.
        return 5 * pages + self.blocks / assumed("deleted at once") * assumed("deletion")

    @property
    def listing_bytes(self) -> float:
        return self.blocks * self.per_commit("finish", "parts_jsonl_bytes")

    # Dollars.

    def dollars(self, where: str) -> float:
        """Workers while they start, load and encode; one worker until `finish` ends; the shuffles."""
        workers = (CPU_WORKERS if where == "cpu" else L4_WORKERS)[self.tokens]
        seconds = self.cpu_seconds if where == "cpu" else self.l4_seconds
        finish = self.end_computing("finish") + self.end_requests("finish")
        hour = (
            assumed(f"{where} vcpus") * assumed("vcpu price")
            + assumed(f"{where} memory") * assumed("memory price")
            + assumed("disk price")
            + (assumed("l4 price") if where == "l4" else 0)
        )
        hours = (workers * (assumed("start") + self.load_seconds() + seconds) + finish) / HOUR
        return hours * hour + sum(self.shuffled.values()) / 1e9 * assumed("shuffle price")
