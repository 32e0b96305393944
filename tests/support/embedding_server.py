"""A server of embeddings on a loopback address: a forward pass in NumPy, with the mistakes that servers make."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from model_server import QuietServer

from layerbeam.transforms.encoders import load_vocabulary, load_weights, open_encoder
from layerbeam.transforms.reference import ReferenceWordPiece, forward

Array = Any


@dataclasses.dataclass(frozen=True)
class Engine:
    """Texts -> vectors. `after`: what is done to all vectors in the end."""

    handle: str
    prompt: str = ""
    pooling: str = "mean"
    special_tokens: bool = True
    layer: int = -1
    normalize: bool = True
    max_seq_length: int = 100
    lower: bool = True
    after: Callable[[Array], Array] | None = None

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        vectors = np.stack([self._vector(self.prompt + text) for text in texts])
        if self.normalize:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors if self.after is None else self.after(vectors)).tolist()

    def _vector(self, text: str) -> Array:
        layers, pooled = _encode(self.handle, text, self.max_seq_length, self.lower)
        if self.pooling == "pooler":
            return pooled
        tokens = layers[self.layer] if self.special_tokens else layers[self.layer][1:-1]
        pooled = {"cls": tokens[0], "last": tokens[-1], "mean": tokens.mean(axis=0), "max": tokens.max(axis=0)}
        return pooled[self.pooling]


@functools.cache
def _encode(handle: str, text: str, max_seq_length: int, lower: bool) -> tuple[list[Array], Array]:
    source = open_encoder(handle)
    ids, segments = ReferenceWordPiece(load_vocabulary(source).entries, lower).sequence(text, "", max_seq_length)
    return forward(source.architecture, dict(load_weights(source)), ids, segments)


@contextlib.contextmanager
def serve(engine: Callable[[Sequence[str]], Any], *, status: int = 200) -> Iterator[str]:
    """The address of a server with /v1/embeddings of OpenAI, in reverse order, and /embed of TEI."""
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/embed":
                answer: Any = engine(asked["inputs"])
            else:
                assert self.path == "/v1/embeddings"
                assert asked["model"]
                vectors = engine(asked["input"])
                data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
                answer = {"object": "list", "data": data[::-1], "model": asked["model"]}
            body = json.dumps(answer if status == 200 else {"error": "input 4 is too long"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    with QuietServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
